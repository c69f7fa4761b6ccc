// Meetings by stores into the others' headers. A meeting is one block: a thread per rank tells that rank how often this
// one has come, and waits until that rank has come as often. Numbers only grow, so nothing has to be reset, and the same
// launch is right in a graph, outside of it, and in a step that is run again.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <atomic>
#include <cstring>

#include "base/error.h"
#include "comm/enqueued.h"
#include "comm/windows/windows.h"
#include "device/cuda/chosen.h"

namespace pleat::comm {
namespace {

constexpr int kMaxRanks = kMaxWindowRanks;

// One group's part of a header. Others write `arrived`; the rest is this rank's.
struct Header {
  uint64_t arrived[kMaxRanks];  // by rank: how often it has come
  uint64_t times;               // this rank has
};
static_assert(sizeof(Header) <= 2048);
constexpr int64_t kHeaderStride = 2048;

struct Headers {
  Header* of[kMaxRanks];
};

// Host memory that a waiting kernel looks at, and what it has to say.
struct Control {
  uint32_t called_off;  // 1: nobody waits any more
  uint32_t missing;     // 1 + the rank that had not come when a wait gave up
  uint64_t done;        // meetings that are over
};

__device__ inline void store_release(uint64_t* at, uint64_t x) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(x) : "memory");
}
__device__ inline uint64_t load_acquire(const uint64_t* at) {
  uint64_t x;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(x) : "l"(at) : "memory");
  return x;
}
__device__ inline uint64_t now_ns() {
  uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

__global__ void __launch_bounds__(kMaxRanks)
    meet(Headers headers, int ranks, int me, uint64_t timeout_ns, volatile Control* control, uint8_t* met) {
  Header* own = headers.of[me];
  const int other = static_cast<int>(threadIdx.x);
  const uint64_t times = own->times + 1;
  __syncthreads();  // all have read it
  bool came = true;
  if (other < ranks) {
    __threadfence_system();
    store_release(&headers.of[other]->arrived[me], times);
    const uint64_t begin = now_ns();
    while (load_acquire(&own->arrived[other]) < times) {
      if (control->called_off != 0) {
        came = false;
        break;
      }
      if (timeout_ns > 0 && now_ns() - begin > timeout_ns) {
        control->missing = 1 + static_cast<uint32_t>(other);
        control->called_off = 1;  // and nobody waits for what follows
        came = false;
        break;
      }
      __nanosleep(200);
    }
  }
  const bool all = __syncthreads_and(came ? 1 : 0) != 0;
  if (threadIdx.x != 0) return;
  own->times = times;
  if (met) *met = all ? 1 : 0;
  __threadfence_system();
  control->done = control->done + 1;
  __threadfence_system();
}

void require(cudaError_t error, const std::string& what) {
  if (error != cudaSuccess)
    base::fail_with(base::ExitCode::Hardware, "{}: {}", what, cudaGetErrorString(error));
}

class WindowGroup final : public EnqueuedCommunicator {
 public:
  WindowGroup(std::string name, std::vector<int> world_ranks, SharedWindows& windows, void* stream,
              double timeout_seconds, RankFlight& flight)
      : EnqueuedCommunicator(std::move(name), std::move(world_ranks), windows.own, flight),
        stream_(static_cast<cudaStream_t>(stream)),
        timeout_ns_(static_cast<uint64_t>(timeout_seconds * 1e9)) {
    const int64_t at = windows.num_groups++ * kHeaderStride;
    if (size() > kMaxRanks || at + kHeaderStride > kWindowHeaderBytes)
      base::fail("group '{}': {} ranks in meeting place {} of a window; at most {} and {} are possible",
                 this->name(), size(), windows.num_groups - 1, kMaxRanks, kWindowHeaderBytes / kHeaderStride);
    for (size_t r = 0; r < windows.begin.size(); ++r)
      headers_.of[r] = reinterpret_cast<Header*>(windows.begin[r] + at);
    device::cuda::enter_device();
    void* memory = nullptr;
    require(cudaHostAlloc(&memory, sizeof(Control), cudaHostAllocMapped), "group '" + this->name() + "'");
    std::memset(memory, 0, sizeof(Control));
    control_ = static_cast<volatile Control*>(memory);
  }
  ~WindowGroup() override {
    control_->called_off = 1;                            // members may be gone: what still waits leaves
    (void)cudaFreeHost(const_cast<Control*>(control_));  // waits until it has
  }

  void abort(const std::string& why) override {
    Communicator::abort(why);
    control_->called_off = 1;
  }

 private:
  void execute(const Call& call) override {
    if (call.operation != Operation::Barrier)
      base::fail_with(base::ExitCode::Internal, "group '{}' can only meet; {} was asked of it", name(),
                      name_of(call.operation));
    meet<<<1, (size() + 31) / 32 * 32, 0, stream_>>>(headers_, size(), rank(), timeout_ns_, control_,
                                                     reinterpret_cast<uint8_t*>(call.out.data()));
    require(cudaGetLastError(), fmt::format("group '{}', meeting of stage '{}'", name(), call.stage));
  }
  uint64_t num_done() const override { return control_->done; }
  bool capturing() const override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(stream_, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone;
  }
  std::string fault() override {
    if (control_->missing != 0)
      return fmt::format("rank {} had not come after {:.1f} s", world_ranks()[control_->missing - 1],
                         static_cast<double>(timeout_ns_) / 1e9);
    if (control_->called_off != 0) return "the meeting was called off";
    const cudaError_t stream = cudaStreamQuery(stream_);
    (void)cudaGetLastError();
    return stream == cudaSuccess || stream == cudaErrorNotReady ? "" : cudaGetErrorString(stream);
  }

  cudaStream_t stream_;
  uint64_t timeout_ns_;
  Headers headers_{};
  volatile Control* control_ = nullptr;
};

}  // namespace

std::unique_ptr<Communicator> make_window_group(std::string name, std::vector<int> world_ranks,
                                                SharedWindows& windows, void* stream, double timeout_seconds,
                                                RankFlight& flight) {
  return std::make_unique<WindowGroup>(std::move(name), std::move(world_ranks), windows, stream,
                                       timeout_seconds, flight);
}

}  // namespace pleat::comm
