// A library that allocates, for alloc_watch_test.cpp.
#include <cstddef>
#include <cstdlib>

extern "C" {
void* allocate_by_malloc(size_t bytes) {
  void* memory = malloc(bytes);
  asm volatile("" : : "r"(memory) : "memory");
  return memory;
}
char* allocate_by_new(size_t bytes) {
  char* memory = new char[bytes];
  asm volatile("" : : "r"(memory) : "memory");
  return memory;
}
}
