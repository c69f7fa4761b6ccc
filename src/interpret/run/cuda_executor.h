// Runs a planned program on the GPU: lanes are streams, waits between lanes are events, the arena is one
// allocation.
//
// The first run enqueues stage by stage; after it the whole step is captured as one graph, and later runs
// launch that: the same kernels on the same addresses, so the same bits. A run with timing, or one that looks
// for non-finite numbers, goes stage by stage.
//
// What the host writes and reads lies in pinned memory (program::Space::Pinned), which data() returns; the copies to the
// device and back are stages of the program.
//
// Ranks that are threads share the GPU, each with a machine of its own. They meet on the host (program/meeting.h): a stage of class
// host waits for its lane's stream; at the collective or transfer behind it the communicator (of comm::Buffers::Device)
// moves the data between the ranks' arenas, and the lane goes on when they are there. Such a program is never a graph.
//
// Calls that are enqueued (NCCL) take their place on the lane's stream like kernels, in list order from one thread, and
// go into the graph with them; where the host reads counts it still waits, and then there is no graph. While the host
// waits, at the end of a step or in it, it watches the groups: their failures surface there, and end all of them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/windows/windows.h"
#include "device/cuda/cuda.h"
#include "interpret/run/executor.h"

namespace pleat::interpret {

// What the programs of one rank share on its GPU.
class CudaMachine {
 public:
  // `window_bytes`: as planned, 0 without any; their header comes on top.
  explicit CudaMachine(int64_t arena_bytes, int64_t pinned_bytes = 0, int64_t window_bytes = 0);
  std::byte* arena() const { return memory_.data(); }
  SpaceMemory spaces() const { return {memory_.data(), pinned_.data(), comm::behind_header(window_.data())}; }
  std::byte* window() const { return window_.data(); }
  int64_t arena_bytes() const { return memory_.size(); }
  device::cuda::Lane& lane(const std::string& name);
  double gemm_rate() const {
    return gemm_rate_;
  }  // FLOP/s of a large bf16 product, measured once per process

  // Between runs; both wait.
  void write(int64_t offset, const void* from, int64_t bytes);
  void read(int64_t offset, void* to, int64_t bytes);
  void fill(int64_t offset, int byte, int64_t bytes);
  // End of the last byte of the arena that was changed since it was made. Bytes changed to what they were
  // filled with at first do not show.
  int64_t end_of_changes();

 private:
  double gemm_rate_;  // measured before the arena takes the memory
  device::cuda::Memory memory_;
  device::cuda::Pinned pinned_;
  device::cuda::Memory window_;  // an allocation of its own: other processes open it
  std::map<std::string, std::unique_ptr<device::cuda::Lane>> lanes_;
};

struct CudaOptions {
  bool graph = true;     // capture the step, where the host takes no part in it
  bool may_tune = true;  // kernels may run on their arguments while they are bound: nothing there counts yet
};

class CudaExecutor final : public Executor {
 public:
  // All outlive the executor. Collectives and transfers need `groups`.
  CudaExecutor(const program::Program& program, const Plan& plan, CudaMachine& machine,
               const CudaOptions& options, const FindGroup& groups = {});
  ~CudaExecutor() override;

  void run(const RunOptions& options = {}) override;
  // Of values in pinned memory: everything else lies on the device.
  void* data(program::ValueId value) const override;
  using Executor::data;
  program::ValueId find(const std::string& name) const override;
  double seconds() const override;
  const Timeline& timeline() const override;
  const std::optional<NonFinite>& non_finite() const override;
  double device_seconds() const override;
  const program::Program& program() const override;

  int64_t num_graph_nodes() const;  // 0: not captured yet

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pleat::interpret
