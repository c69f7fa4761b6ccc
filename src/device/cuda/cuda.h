// The GPU as the rest of the project sees it: memory, lanes (streams), events, graphs. No vendor header is
// needed to include this; a build without CUDA links absent.cpp, whose answer is "not built in".
//
// Nothing here is thrown from a callback. A device error surfaces at the next call that waits, as base::Error
// with ExitCode::Hardware.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

struct CUstream_st;  // cudaStream_t is a pointer to one

namespace pleat::device::cuda {

bool built_in();
// Devices this process can use; 0 without a driver. `why` (if given) says why there are none.
int num_devices(std::string* why = nullptr);

struct Facts {
  std::string name;
  int major = 0, minor = 0, num_sms = 0;
  int64_t memory_bytes = 0, free_bytes = 0, l2_bytes = 0;
  int driver = 0, runtime = 0, cublas = 0, cudnn = 0;  // as the libraries print them: 13000, 130100, 91900
  int clock_mhz = 0;                                   // now, 0 when not known
};
Facts facts();

// One allocation of exactly `bytes`. Throws naming what was asked and what is free.
class Memory {
 public:
  explicit Memory(int64_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

// Host memory the device copies from and to without a staging copy, and reaches from kernels: zero at first. A refusal
// names the limit that was met.
class Pinned {
 public:
  explicit Pinned(int64_t bytes);
  ~Pinned();
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  void lock();
  void release();
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
  void* map_ = nullptr;  // where it is not the driver's own allocation
  int64_t mapped_ = 0;
  std::vector<std::byte*> locked_;  // pieces that the driver has locked
};
// Addresses that are multiples of it end a piece (pieces.h).
inline constexpr int64_t kPinnedPiece = int64_t{4} << 30;

class Event {
 public:
  explicit Event(bool timing = false);
  ~Event();
  Event(Event&&) noexcept;
  Event& operator=(Event&&) = delete;
  void* handle() const { return handle_; }
  // Milliseconds between two recorded timing events; waits for the later one.
  static double milliseconds(const Event& from, const Event& to);

 private:
  void* handle_ = nullptr;
};

// What the kernels of one lane share: a stream and library handles, whose memory is the driver's own.
class Lane {
 public:
  Lane();
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  CUstream_st* stream() const { return stream_; }

  void record(Event& event);
  void wait(const Event& event);
  void synchronize();  // throws what the device has to complain about

  void copy_in(void* device, const void* host, int64_t bytes);  // asynchronous when the host side is pinned
  void copy_out(void* host, const void* device, int64_t bytes);
  void copy(void* to, const void* from, int64_t bytes);  // on the device
  void fill(void* device, int byte, int64_t bytes);      // or pinned memory

  // While programs are bound for the first time nothing in memory counts yet: kernels may run on their
  // arguments, with random numbers in them, to choose the fastest way. Off: they take what the library
  // recommends.
  bool may_tune = false;

  // cublasLtHandle_t, cudnnHandle_t (bound to the stream), made at first use.
  void* cublas();
  void* cudnn();

 private:
  CUstream_st* stream_ = nullptr;
  void* cublas_ = nullptr;
  void* cudnn_ = nullptr;
};

// What was enqueued between begin and end, as one graph: launched again at once, with the same addresses.
class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void capture(Lane& origin, const std::function<void()>& enqueue);
  void launch(Lane& lane);
  bool ready() const { return handle_ != nullptr; }
  int64_t num_nodes() const { return num_nodes_; }

 private:
  void* handle_ = nullptr;
  int64_t num_nodes_ = 0;
};

// Seconds of one run of `enqueue`, the median of `repeats` after one to warm up.
double median_seconds(Lane& lane, int repeats, const std::function<void()>& enqueue);

// Named ranges for profilers; cheap when none listens.
void push_range(const char* name);
void pop_range();

// Rates of this device, measured now: a large copy (bytes read plus written per second) and a bf16 product of
// 8192 x 8192 x 8192 on random numbers (FLOP/s).
double measure_copy_rate();
double measure_gemm_rate();

}  // namespace pleat::device::cuda
