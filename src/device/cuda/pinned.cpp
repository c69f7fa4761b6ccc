// Host memory the device reaches. The runtime's own allocator finds, clears and locks page after page on one thread, 2.7 GiB
// a second; states of an optimizer are tens of GiB. So large memory is mapped here, touched in huge pages by several
// threads, and locked in pieces while the threads go on.
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "base/alloc_watch.h"
#include "device/cpu/host_memory.h"
#include "device/cuda/check.h"
#include "device/cuda/chosen.h"
#include "device/cuda/cuda.h"

namespace pleat::device::cuda {
namespace {

constexpr int64_t kLarge = int64_t{64} << 20, kHugePage = int64_t{2} << 20;
constexpr int kTouchers = 16;

std::string gib(int64_t bytes) {
  return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / 1073741824.0);
}

std::string locked_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return gib(static_cast<int64_t>(limit.rlim_cur));
}

[[noreturn]] void refuse(int64_t bytes, const std::string& why) {
  base::fail_with(
      base::ExitCode::Hardware,
      "{} of the host's memory are needed where the GPU reaches them (`pleat plan` shows for what); "
      "{}",
      gib(bytes), why);
}

[[noreturn]] void refuse_lock(int64_t bytes, int64_t locked, cudaError_t code) {
  (void)cudaGetLastError();
  const AvailableMemory left = available_host_memory();
  refuse(bytes,
         fmt::format(
             "the GPU's driver refused to lock more than {}: {} ({}). This process may lock {} (ulimit -l), "
             "and {} has {} free; the driver may have a limit of its own",
             gib(locked), cudaGetErrorString(code), cudaGetErrorName(code), locked_limit(), left.limit,
             left.bytes < 0 ? "an unknown amount" : gib(left.bytes)));
}

// Writes every page of memory that nobody has touched.
void touch(std::byte* begin, const std::byte* end) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  for (std::byte* at = begin; at < end; at += page) *static_cast<volatile std::byte*>(at) = std::byte{0};
}

}  // namespace

Pinned::Pinned(int64_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  base::note_allocation(bytes);
  enter_device();
  if (bytes < kLarge) {
    void* at = nullptr;
    if (const cudaError_t code = cudaMallocHost(&at, static_cast<size_t>(bytes)); code != cudaSuccess)
      refuse_lock(bytes, 0, code);
    data_ = static_cast<std::byte*>(at);
    std::memset(data_, 0, static_cast<size_t>(bytes));
    return;
  }
  if (const AvailableMemory free = available_host_memory(); free.bytes >= 0 && free.bytes < bytes)
    refuse(bytes, fmt::format("{} has {} free", free.limit, gib(free.bytes)));
  mapped_ = (bytes + 2 * kHugePage - 1) / kHugePage * kHugePage;
  void* const map =
      mmap(nullptr, static_cast<size_t>(mapped_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) refuse(bytes, fmt::format("the system refused to map it: {}", std::strerror(errno)));
  map_ = map;
  const auto address = reinterpret_cast<uintptr_t>(map);
  data_ = reinterpret_cast<std::byte*>((address + kHugePage - 1) / kHugePage * kHugePage);
  madvise(data_, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // a hint
  lock();
}

// Pieces end where a copy is divided (pieces.h).
void Pinned::lock() {
  std::vector<std::byte*> ends;
  for (std::byte* at = data_; at < data_ + size_;) {
    const auto next = (reinterpret_cast<uintptr_t>(at) / kPinnedPiece + 1) * kPinnedPiece;
    at = std::min(data_ + size_, reinterpret_cast<std::byte*>(next));
    ends.push_back(at);
  }
  // Threads take stripes of a piece, all of them of one piece after the other.
  std::vector<std::atomic<int>> touched(ends.size());
  std::vector<std::thread> touchers;
  for (int t = 0; t < kTouchers; ++t)
    touchers.emplace_back([&, t] {
      std::byte* begin = data_;
      for (size_t i = 0; i < ends.size(); ++i) {
        const int64_t pages = (ends[i] - begin + kHugePage - 1) / kHugePage;
        touch(begin + pages * t / kTouchers * kHugePage,
              std::min(ends[i], begin + pages * (t + 1) / kTouchers * kHugePage));
        touched[i].fetch_add(1);
        touched[i].notify_one();
        begin = ends[i];
      }
    });
  cudaError_t code = cudaSuccess;
  std::byte* begin = data_;
  for (size_t i = 0; i < ends.size() && code == cudaSuccess; ++i) {
    for (int done = touched[i]; done < kTouchers; done = touched[i]) touched[i].wait(done);
    code = cudaHostRegister(begin, static_cast<size_t>(ends[i] - begin), cudaHostRegisterPortable);
    if (code == cudaSuccess) locked_.push_back(begin), begin = ends[i];
  }
  for (std::thread& t : touchers) t.join();
  if (code == cudaSuccess) return;
  const int64_t locked = begin - data_;
  release();
  refuse_lock(size_, locked, code);
}

void Pinned::release() {
  if (!map_) {
    (void)cudaFreeHost(data_);
    return;
  }
  for (std::byte* piece : locked_) (void)cudaHostUnregister(piece);
  munmap(map_, static_cast<size_t>(mapped_));
}

Pinned::~Pinned() {
  if (data_) release();
}

}  // namespace pleat::device::cuda
