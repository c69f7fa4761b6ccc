// What runs programs: a rank's programs over one set of values that lives across them, the memory both lie in, and
// the executor of each on the rank's device. Whoever runs programs (training, evaluation, generation, verification,
// probes, benchmarks) drives one of these.
//
// All programs declare the same persistent values first, so each of these lies at one place whoever reads it. The
// memory is exactly the largest plan.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/laps.h"
#include "checkpoint/load.h"
#include "checkpoint/staged_memory.h"
#include "checkpoint/state.h"
#include "device/cpu/arena.h"
#include "device/cpu/pool.h"
#include "interpret/plan/plan.h"
#include "interpret/run/cuda_executor.h"
#include "interpret/run/executor.h"
#include "program/program.h"

namespace pleat::runtime {

// A program with its plan, both checked.
struct Planned {
  program::Program program;
  interpret::Plan plan;
};
Planned planned(program::Program program);

enum class Device : uint8_t { Cpu, Cuda };
Device device_of(const std::string& kind);  // "cpu", "cuda": device.kind
comm::Buffers buffers_of(Device device);

// The groups that stages of one lane meet others in.
using GroupLane = std::pair<program::Group, std::string>;
// How a rank among several finds them: `open` is called once with all of them, before `find`.
using StreamOf = std::function<void*(const std::string& lane)>;  // nullptr where lanes have none
struct Groups {
  std::function<void(const std::set<GroupLane>&, comm::Buffers, const StreamOf&)> open;
  // Before `open`, where programs have windows: this rank's memory for them, with a header in front, and whose ranks'.
  std::function<void(program::Group, comm::Buffers, const std::shared_ptr<std::byte>& memory)> share_windows;
  interpret::FindGroup find;
};

// What carries between the host and the memory that programs run in: a GPU's, or this of the CPU.
using MakeCarrier = std::function<std::unique_ptr<checkpoint::Carrier>(interpret::CudaMachine* machine,
                                                                       std::span<std::byte> memory)>;

struct Options {
  base::Laps laps = {};  // of what was done before; goes on here
  Device device = Device::Cpu;
  int num_threads = 1;
  bool graph = true;  // on a GPU: a step becomes a graph
  bool nan_memory =
      false;  // memory begins as NaN, which nothing may read, instead of a pattern that shows changes
  Groups groups = {};
  int64_t exchange_bytes = 0;    // of a GPU, that exchanges between ranks take when they first run
  int64_t alike_in_process = 1;  // ranks that are threads of this process and take as much memory as this one
  std::function<void(const std::function<void()>& bind)> bind_in_turn =
      {};  // when this rank binds; none: at once
  // None: buffers of interpret::staging_bytes for a GPU, and a CPU's memory the host reaches. Tests have small buffers.
  MakeCarrier carrier = {};
};

class Runtime {
 public:
  // Allocates, fills memory with a pattern, binds every kernel. Values that live across steps are not initialised.
  Runtime(std::vector<Planned> programs, const Options& options);
  Runtime(program::Program program, int num_threads, Device device = Device::Cpu);
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  size_t size() const { return programs_.size(); }
  interpret::Executor& executor(size_t program = 0) { return *executors_[program]; }
  const interpret::Executor& executor(size_t program = 0) const { return *executors_[program]; }
  const Planned& planned(size_t program = 0) const { return programs_[program]; }
  const program::Program& program(size_t program = 0) const { return programs_[program].program; }
  const interpret::Plan& plan(size_t program = 0) const { return programs_[program].plan; }
  const base::Laps& laps() const { return laps_; }  // where the time until it could run went
  device::Pool& pool() { return pool_; }
  const device::Arena& arena() const { return *arena_; }        // of a CPU
  interpret::CudaMachine* machine() { return machine_.get(); }  // nullptr: the CPU
  const interpret::CudaMachine* machine() const { return machine_.get(); }

  // A persistent value of the first program, or of any: they lie alike. Between runs it is read and written where it
  // lies (checkpoint/bytes.h): there is no other copy.
  checkpoint::Bytes bytes(program::ValueId value, size_t program = 0) const;

  // The state: every persistent value that is no constant, as this rank holds it, where it lies.
  std::vector<checkpoint::Target> targets() const;
  const checkpoint::Target& target(const std::string& name) const;
  std::vector<checkpoint::TensorRef> tensors() const;
  // One of them as it is now.
  void read(const std::string& name, std::span<std::byte> to) const;
  // Where a GPU's kernels find it: in its own memory, or in what is pinned.
  std::byte* on_device(const std::string& name) const;

 private:
  void bind(const Options& options);
  void bind_programs(const Options& options);
  void open_groups(const Groups& groups, comm::Buffers buffers);
  void require_same_state() const;

  base::Laps laps_;
  std::vector<Planned> programs_;
  device::Pool pool_;
  // Other ranks keep what their stores go to: on a GPU the machine, on the CPU the windows.
  std::shared_ptr<interpret::CudaMachine> machine_;
  std::unique_ptr<device::Arena> arena_;  // on the CPU, as the next two
  std::unique_ptr<device::Arena> pinned_;
  std::shared_ptr<device::Arena> window_;
  std::unique_ptr<checkpoint::Carrier> carrier_;
  std::unique_ptr<checkpoint::StagedMemory> staged_;  // the device's space where the host does not reach it
  std::vector<std::unique_ptr<interpret::Executor>> executors_;
  std::map<std::string, checkpoint::Target> targets_;
};

}  // namespace pleat::runtime
