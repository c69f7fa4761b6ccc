#include "interpret/run/executor.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <future>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "base/error.h"
#include "interpret/run/lane_threads.h"
#include "kernels/contract.h"
#include "program/message_calls.h"
#include "program/repeat.h"

namespace pleat::interpret {

using namespace program;

namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Writes the seconds of its own life.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ = static_cast<double>(now_ns() - start_) / 1e9; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  int64_t start_ = now_ns();
};

struct BoundStage {
  kernels::Kernel kernel = nullptr;
  BoundCollective collective;  // instead of a kernel
  kernels::Invocation invocation;
  std::vector<kernels::Arg> args;
};

template <class T>
void scan(const T* data, int64_t n, NonFinite& found) {
  for (int64_t i = 0; i < n; ++i)
    if (!std::isfinite(data[i])) {
      if (found.count++ == 0) found.element = i, found.number = static_cast<double>(data[i]);
    }
}

}  // namespace

struct Executor::State {
  const Program& program;
  const Plan& plan;
  SpaceMemory spaces;
  std::vector<BoundStage> stages;
  std::unordered_map<std::string, ValueId> names;
  Timeline timeline;
  double seconds = 0;
  std::optional<NonFinite> bad;

  // Poison: uses left until a root is dead, and whether it was prepared for its first write.
  std::vector<int64_t> uses_left;
  std::vector<char> prepared;
  std::vector<int64_t> uses_total;  // of what is used in repeated stages alone: those of one pass

  const StageRange repeated_stages;
  std::vector<ValueId> of_a_pass;  // roots that are used in repeated stages alone
  int64_t pass = 0;                // of the repeated stages, while they run

  LaneThreads lanes;
  std::mutex mutex;                                // of what lanes share here
  std::vector<std::pair<StageId, StageId>> calls;  // which messages are one, where all runs in order

  FindGroup groups;
  HostMemory memory;

  State(const Program& p, const Plan& q, SpaceMemory m, const FindGroup& g)
      : program(p), plan(q), spaces(m), repeated_stages(repeated(p)), lanes(p), groups(g) {
    count_uses();
    const int64_t more = has_repeat(p) ? p.repeat.times - 1 : 0;
    timeline.spans.resize(p.stages.size() + static_cast<size_t>(more) * num_repeated());
  }

  size_t num_repeated() const { return static_cast<size_t>(repeated_stages.end - repeated_stages.first); }

  void count_uses() {
    uses_total.assign(program.values.size(), 0);
    std::vector<char> outside(program.values.size(), 0), inside(program.values.size(), 0);
    for (StageId s = 0; s < static_cast<StageId>(program.stages.size()); ++s)
      for (const Use& use : program.stages[static_cast<size_t>(s)].uses) {
        if (use.value == kNoValue) continue;
        const size_t root = static_cast<size_t>(root_of(program, use.value));
        uses_total[root] += passes_of(program, repeated_stages, s);
        (repeated_stages.holds(s) ? inside : outside)[root] = 1;
      }
    for (size_t root = 0; root < uses_total.size(); ++root)
      if (inside[root] && !outside[root]) {
        uses_total[root] /= program.repeat.times;
        of_a_pass.push_back(static_cast<ValueId>(root));
      }
  }

  Span& span_of(StageId id) {
    const size_t s = static_cast<size_t>(id);
    if (pass == 0) return timeline.spans[s];
    return timeline.spans[stages.size() + static_cast<size_t>(pass - 1) * num_repeated() + s -
                          static_cast<size_t>(repeated_stages.first)];
  }

  std::byte* address(ValueId v) const {
    const int64_t offset = plan.offset[static_cast<size_t>(v)];
    return offset < 0 ? nullptr : spaces.of(program.values[static_cast<size_t>(v)].space) + offset;
  }

  std::span<std::byte> scratch_of(const Stage& stage) const {
    if (stage.scratch == kNoValue) return {};
    return {address(stage.scratch),
            static_cast<size_t>(num_bytes(program.values[static_cast<size_t>(stage.scratch)]))};
  }

  void bind(size_t s, device::Pool& pool) {
    const Stage& stage = program.stages[s];
    BoundStage& bound = stages[s];
    for (const Use& use : stage.uses) {
      kernels::Arg arg;
      if (use.value != kNoValue) {
        const Value& v = program.values[static_cast<size_t>(use.value)];
        arg = {address(use.value), v.dtype, v.shape, use.access, true};
      }
      bound.args.push_back(arg);
    }
    kernels::name_arguments(bound.args, kernel_of(stage.op), stage.phase);
    bound.invocation = {bound.args, &program.attrs[static_cast<size_t>(stage.attrs)], &pool,
                        scratch_of(stage)};
    if (class_of(stage.op) == OpClass::Store) bound.invocation.windows = windows_of(stage, groups);
    if (is_exchange(stage.op)) {
      bound.collective = bind_collective(program, stage, bound.invocation, groups);
      PLEAT_CHECK(bound.collective.group->meeting() == program::Meeting::OnHost,
                  "the CPU has no streams: calls of group '{}' cannot be enqueued",
                  bound.collective.group->name());
      return;
    }
    const KernelKind kind = kernel_of(stage.op);
    const kernels::Resolve resolve = kernels::find_cpu_kernel(kind, stage.phase);
    if (!resolve)
      base::fail_with(base::ExitCode::Internal, "{}: the CPU has no kernel {} for this phase",
                      stage_name(stage), name_of(kind));
    try {
      kernels::check_contract(kind, stage.phase, bound.invocation);
      bound.kernel = resolve(bound.invocation);
    } catch (const base::Error& e) {
      throw base::Error(e.code(), fmt::format("{}: {}", stage_name(stage), e.what()));
    }
    if (!bound.kernel)
      base::fail_with(base::ExitCode::Internal, "{}: kernel {} does not take these element types ({})",
                      stage_name(stage), name_of(kind), kernels::types_of(bound.args));
  }

  void fill_dead(ValueId root) {
    const Value& v = program.values[static_cast<size_t>(root)];
    // Who writes a window is on other ranks, and may have done so already.
    if ((v.life == Life::Step || v.life == Life::Result) && v.space != Space::Window)
      std::memset(address(root), 0xFF, static_cast<size_t>(num_bytes(v)));
  }

  void poison_before(const Stage& stage) {
    std::lock_guard lock(mutex);
    if (stage.scratch != kNoValue) fill_dead(stage.scratch);
    for (const Use& use : stage.uses) {
      if (use.value == kNoValue) continue;
      const size_t root = static_cast<size_t>(root_of(program, use.value));
      if (!prepared[root]) fill_dead(static_cast<ValueId>(root)), prepared[root] = 1;
    }
  }

  void poison_after(const Stage& stage) {
    std::lock_guard lock(mutex);
    if (stage.scratch != kNoValue) fill_dead(stage.scratch);
    for (const Use& use : stage.uses) {
      if (use.value == kNoValue) continue;
      const ValueId root = root_of(program, use.value);
      if (--uses_left[static_cast<size_t>(root)] == 0 &&
          program.values[static_cast<size_t>(root)].life == Life::Step)
        fill_dead(root);
    }
  }

  void look_for_non_finite(StageId id) {
    const Stage& stage = program.stages[static_cast<size_t>(id)];
    for (const Use& use : stage.uses) {
      if (use.value == kNoValue || use.access == Access::Read) continue;
      const Value& v = program.values[static_cast<size_t>(use.value)];
      NonFinite found;
      int64_t n = num_elements(v);
      if (v.maximum_rows > 0 && !v.shape.empty() && v.shape[0] > 0) n = used_rows(stage) * (n / v.shape[0]);
      if (v.dtype == tensor::Dtype::F32) scan(reinterpret_cast<const float*>(address(use.value)), n, found);
      if (v.dtype == tensor::Dtype::F64) scan(reinterpret_cast<const double*>(address(use.value)), n, found);
      if (found.count == 0) continue;
      found.stage = id;
      found.value = use.value;
      found.text = fmt::format("{} wrote {} non-finite of {} elements of '{}', the first is {} at element {}",
                               stage_name(stage), found.count, n, v.name, found.number, found.element);
      std::lock_guard lock(mutex);
      if (!bad || id < bad->stage) bad = found;
      return;
    }
  }

  // Rows of routed values past the last expert's end are never written: only what the step used counts.
  int64_t used_rows(const Stage& stage) const {
    const int at = rows_use(stage);
    if (at < 0) return 0;
    const ValueId offsets = stage.uses[static_cast<size_t>(at)].value;
    const Value& v = program.values[static_cast<size_t>(offsets)];
    return reinterpret_cast<const int32_t*>(address(offsets))[v.shape[0] - 1];
  }

  void run_stage(StageId id, const RunOptions& options) {
    const size_t s = static_cast<size_t>(id);
    const Stage& stage = program.stages[s];
    if (options.poison) poison_before(stage);
    const bool paced = !options.least_ns.empty();
    const int64_t start = options.timing || paced ? now_ns() : 0;
    try {
      if (stages[s].collective.run) {
        stages[s].collective(stage, stages[s].invocation, memory);
      } else {
        stages[s].kernel(stages[s].invocation);
      }
    } catch (const base::Error& e) {
      throw base::Error(e.code(), fmt::format("{}: {}", stage_name(stage), e.what()));
    }
    if (paced) std::this_thread::sleep_for(std::chrono::nanoseconds(start + options.least_ns[s] - now_ns()));
    if (options.timing) span_of(id) = {id, start, now_ns()};
    if (options.find_non_finite) look_for_non_finite(id);
    if (options.poison) poison_after(stage);
  }

  // Messages that are one call wait for nobody but their peers.
  void run_together(StageId first, StageId end, const RunOptions& options) {
    std::exception_ptr failure;
    const auto failed = [&](const char* why) {
      {
        std::lock_guard lock(mutex);
        if (failure) return;
        failure = std::current_exception();
      }
      abort(why);  // the other messages may wait for a peer that waits for this one
    };
    const auto keep_first = [&](const auto& work) {
      try {
        work();
      } catch (const std::exception& e) {
        failed(e.what());
      } catch (...) {
        failed("an error of unknown kind");
      }
    };
    std::vector<std::future<void>> others;
    keep_first([&] {
      for (StageId s = first + 1; s < end; ++s)
        others.push_back(
            std::async(std::launch::async, [&, s] { keep_first([&] { run_stage(s, options); }); }));
      run_stage(first, options);
    });
    for (const std::future<void>& other : others) other.wait();
    if (failure) std::rethrow_exception(failure);
  }

  // This rank has failed: its calls on other threads end, and the other ranks are told.
  void abort(const std::string& why) {
    for (const BoundStage& stage : stages)
      if (stage.collective.run) return stage.collective.group->abort(why);
  }

  void run_range(StageRange range, const RunOptions& options) {
    if (range.first == range.end) return;
    if (lanes.num_lanes() <= 1 || !options.lanes_run()) return run_in_order(range, options);
    lanes.run(
        range, options.delay_seed, [&](StageId id) { run_stage(id, options); },
        [&](const std::string& why) { abort(why); });
  }

  void run_repeated(const RunOptions& options) {
    const auto stops = [&] { return bad && !options.go_on; };
    const int64_t times = has_repeat(program) ? program.repeat.times : 0;
    for (int64_t p = 0; p < times && !stops(); ++p) {
      if (options.before_pass) options.before_pass(p);
      if (options.poison)
        for (const ValueId root : of_a_pass)
          uses_left[static_cast<size_t>(root)] = uses_total[static_cast<size_t>(root)],
          prepared[static_cast<size_t>(root)] = 0;
      pass = p;
      run_range(repeated_stages, options);
    }
    pass = 0;
  }

  void run_in_order(StageRange range, const RunOptions& options) {
    if (calls.empty()) calls = message_calls(program, edge_list(program));
    for (StageId s = range.first; s < range.end;) {
      const StageId end = calls[static_cast<size_t>(s)].second;
      if (end > s + 1)
        run_together(s, end, options);
      else
        run_stage(s, options);
      if (bad && !options.go_on) return;
      s = end;
    }
  }
};

Executor::Executor(const Program& program, const Plan& plan, SpaceMemory memory, device::Pool& pool,
                   const FindGroup& groups)
    : state_(std::make_unique<State>(program, plan, memory, groups)) {
  const size_t n = program.stages.size();
  state_->stages.resize(n);
  for (size_t s = 0; s < n; ++s) state_->bind(s, pool);
  for (size_t i = 0; i < program.values.size(); ++i)
    state_->names.emplace(program.values[i].name, static_cast<ValueId>(i));
}

Executor::Executor() = default;
Executor::~Executor() = default;

void Executor::run(const RunOptions& options) {
  State& s = *state_;
  const Stopwatch watch(s.seconds);
  s.bad.reset();
  if (options.poison) {
    s.uses_left = s.uses_total;
    s.prepared.assign(s.program.values.size(), 0);
  }
  s.run_range({0, s.repeated_stages.first}, options);
  s.run_repeated(options);
  if (!s.bad || options.go_on)
    s.run_range({s.repeated_stages.end, static_cast<StageId>(s.stages.size())}, options);
}

void* Executor::data(ValueId value) const { return state_->address(value); }

ValueId Executor::find(const std::string& name) const {
  const auto it = state_->names.find(name);
  if (it == state_->names.end())
    base::fail_with(base::ExitCode::Internal, "program {} has no value '{}'", state_->program.name, name);
  return it->second;
}

void* Executor::data(const std::string& name) const { return data(find(name)); }

const StepValues& Executor::step_values() const {
  if (!step_values_) step_values_.emplace(program());
  return *step_values_;
}

ValueId Executor::find(StepValueKey key, std::optional<tensor::Dtype> dtype) const {
  const ValueId id = step_values().find(key);
  const auto name = [&] { return tagged(name_of(key.id), key.microbatch, key.layer).text; };
  if (id == kNoValue)
    base::fail_with(base::ExitCode::Internal, "program {} neither takes nor gives '{}'", program().name,
                    name());
  const Value& v = program().values[static_cast<size_t>(id)];
  if (dtype && v.dtype != *dtype)
    base::fail_with(base::ExitCode::Internal, "'{}' of program {} has elements {}, needed {}", v.name,
                    program().name, tensor::name_of(v.dtype), tensor::name_of(*dtype));
  return id;
}

int64_t Executor::num_elements_of(ValueId id) const {
  return num_elements(program().values[static_cast<size_t>(id)]);
}
double Executor::seconds() const { return state_->seconds; }
const Timeline& Executor::timeline() const { return state_->timeline; }
const std::optional<NonFinite>& Executor::non_finite() const { return state_->bad; }
double Executor::device_seconds() const { return 0; }
const Program& Executor::program() const { return state_->program; }

}  // namespace pleat::interpret
