// Runs a planned program, on the CPU unless a derived class (cuda_executor.h) says otherwise. Names,
// addresses and kernels are resolved once, when the executor is made; a step then allocates nothing. This is
// the only place that waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "device/cpu/pool.h"
#include "interpret/plan/plan.h"
#include "interpret/run/collectives.h"
#include "interpret/trace/timeline.h"
#include "kernels/invocation.h"
#include "program/program.h"
#include "program/step_values.h"

namespace pleat::interpret {

struct RunOptions {
  // Lanes run side by side, ordered by the data edges of the program alone; in_order: all stages one after the other,
  // in list order, for debugging, messages that are one call (program/message_calls.h) together. Messages that wait for
  // each other on several lanes need lanes that run, unless they are in the order of one (schedule/pass/message_chain.h).
  bool in_order = false;
  uint64_t delay_seed = 0;  // random pauses before stages (0: none)
  // Overwrite memory the moment the program says it is dead, and before its first write: nothing may notice.
  bool poison = false;
  // Look at every float a stage wrote; stop at the first that is not finite, which means in_order, unless other ranks
  // wait for the rest (go_on).
  bool find_non_finite = false;
  bool go_on = false;
  bool timing = false;
  // On the CPU, per stage: it lasts at least so long. A run at the pace of a simulation.
  std::span<const int64_t> least_ns = {};
  // Of stages that are repeated (program/repeat.h): before every pass, from 0 on; writes that pass's inputs. None: all
  // passes take what is there.
  std::function<void(int64_t pass)> before_pass = {};

  bool lanes_run() const { return !in_order && !(find_non_finite && !go_on); }
};

struct NonFinite {
  program::StageId stage = -1;
  program::ValueId value = program::kNoValue;
  int64_t element = 0, count = 0;
  double number = 0;
  std::string text;  // stage, value, how many elements and the first of them
};

// Where each space begins.
struct SpaceMemory {
  std::byte *device = nullptr, *pinned = nullptr, *window = nullptr;
  std::byte* of(program::Space space) const {
    return space == program::Space::Device ? device : space == program::Space::Pinned ? pinned : window;
  }
};

class Executor {
 public:
  // The program, the plan, the memory and the pool must outlive the executor. Throws base::Error naming the
  // stage when a kernel is missing or its arguments do not fit.
  // Collectives and transfers need `groups`.
  Executor(const program::Program& program, const Plan& plan, SpaceMemory memory, device::Pool& pool,
           const FindGroup& groups = {});
  virtual ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // One pass over the program. What a kernel throws is rethrown with the stage's name in front.
  virtual void run(const RunOptions& options = {});

  // Where the host writes inputs before a run and reads results after it.
  virtual void* data(program::ValueId value) const;
  // By name and type (program/step_values.h); throws where the program has none.
  template <class T, program::Of kOf, class... Index>
  std::span<T> at(const program::StepValue<T, kOf>& value, Index... index) const {
    const program::ValueId id = find(value.key(index...), dtype_of(value));
    return {static_cast<T*>(data(id)), static_cast<size_t>(num_elements_of(id))};
  }
  template <class T, program::Of kOf, class... Index>
  bool has(const program::StepValue<T, kOf>& value, Index... index) const {
    return step_values().find(value.key(index...)) != program::kNoValue;
  }
  program::ValueId find(program::StepValueKey key, std::optional<tensor::Dtype> dtype = {}) const;
  void* data(const std::string& name) const;
  virtual program::ValueId find(const std::string& name) const;  // throws when there is none

  // Of the last run, copies of inputs and results included; on a GPU by the device's clock.
  virtual double seconds() const;
  // Of the last run with timing; a stage that is repeated has a span for every pass, the first in its own place and the
  // others behind all stages.
  virtual const Timeline& timeline() const;
  virtual const std::optional<NonFinite>& non_finite() const;  // of the last run with find_non_finite
  // Seconds a device was given to the last run, from its first to its last operation; 0 where that is not
  // known: on the CPU, and where stages were enqueued one by one.
  virtual double device_seconds() const;
  virtual const program::Program& program() const;

 protected:
  Executor();  // for a device of its own: binds nothing

 private:
  const program::StepValues& step_values() const;
  int64_t num_elements_of(program::ValueId id) const;

  mutable std::optional<program::StepValues> step_values_;  // read when first asked for
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pleat::interpret
