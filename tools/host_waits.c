// Counts the calls in which a host waits for its GPU, between launches of graphs: a witness beside what the program says.
//   cc -shared -fPIC -O2 tools/host_waits.c -o host_waits.so -ldl
//   HOST_WAITS_FILE=waits LD_PRELOAD=./host_waits.so pleat train ...
// At its end a process that launched graphs writes FILE.PID: how many such calls came after each launch and before the next
// (one: the end of the step), and how many of each kind. tools/check_gpu_ranks.py uses it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { kMost = 4096, kKinds = 4 };
static const char* const kinds[kKinds] = {"cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "cudaMemcpy"};
static long calls[kKinds], waits[kMost];
static int graphs;

static void note(int kind) {
  ++calls[kind];
  if (graphs < kMost) ++waits[graphs];
}

#define REAL(name, ...)                                       \
  static int (*real)(__VA_ARGS__);                            \
  if (!real) real = (int (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

int cudaStreamSynchronize(void* stream) {
  REAL("cudaStreamSynchronize", void*);
  note(0);
  return real(stream);
}
int cudaEventSynchronize(void* event) {
  REAL("cudaEventSynchronize", void*);
  note(1);
  return real(event);
}
int cudaDeviceSynchronize(void) {
  REAL("cudaDeviceSynchronize", void);
  note(2);
  return real();
}
int cudaMemcpy(void* to, const void* from, size_t bytes, int kind) {
  REAL("cudaMemcpy", void*, const void*, size_t, int);
  note(3);
  return real(to, from, bytes, kind);
}
int cudaGraphLaunch(void* graph, void* stream) {
  REAL("cudaGraphLaunch", void*, void*);
  if (graphs < kMost - 1) ++graphs;
  return real(graph, stream);
}

__attribute__((destructor)) static void say(void) {
  const char* file = getenv("HOST_WAITS_FILE");
  if (!file || graphs == 0) return;
  char path[500];
  snprintf(path, sizeof path, "%s.%d", file, (int)getpid());
  FILE* out = fopen(path, "w");
  if (!out) return;
  fprintf(out, "%d launches of a graph; waits after each:", graphs);
  for (int g = 1; g <= graphs; ++g) fprintf(out, " %ld", waits[g]);
  fprintf(out, "\n");
  for (int k = 0; k < kKinds; ++k) fprintf(out, "%s %ld\n", kinds[k], calls[k]);
  fclose(out);
}
