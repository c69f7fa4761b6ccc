#include "interpret/run/cuda_executor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/checked.h"
#include "base/error.h"
#include "device/cuda/chosen.h"
#include "device/cuda/graph_clock.h"
#include "device/cuda/query.h"
#include "device/gpu_fault.h"
#include "interpret/check/check.h"
#include "interpret/run/device_memory.h"
#include "interpret/run/lane_threads.h"
#include "kernels/contract.h"
#include "kernels/cuda/bind.h"
#include "program/message_calls.h"
#include "program/order.h"
#include "tensor/bf16.h"

namespace pleat::interpret {

using namespace program;
using device::cuda::Event;
using device::cuda::Lane;

namespace {
double gemm_rate_once() {
  static const double rate = device::cuda::measure_gemm_rate();
  return rate;
}
// Of a GPU the kernels are made for; nothing else runs on it before this is known.
double fitting_gemm_rate() {
  if (const std::string fault = device::gpu_fault(device::cuda::facts()); !fault.empty())
    base::fail_with(base::ExitCode::Hardware, "{}", fault);
  return gemm_rate_once();
}
constexpr unsigned char kUntouched = 0xA7;
}  // namespace

CudaMachine::CudaMachine(int64_t arena_bytes, int64_t pinned_bytes, int64_t window_bytes)
    : gemm_rate_(fitting_gemm_rate()),
      memory_(arena_bytes),
      pinned_(std::max<int64_t>(pinned_bytes, 256)),
      window_(allocated_windows(window_bytes)) {
  fill(0, kUntouched, arena_bytes);
}

int64_t CudaMachine::end_of_changes() {
  std::vector<unsigned char> piece(size_t{1} << 22);
  for (int64_t end = arena_bytes(); end > 0;) {
    const int64_t count = std::min<int64_t>(end, static_cast<int64_t>(piece.size()));
    read(end - count, piece.data(), count);
    for (int64_t i = count; i > 0; --i)
      if (piece[static_cast<size_t>(i - 1)] != kUntouched) return end - count + i;
    end -= count;
  }
  return 0;
}

Lane& CudaMachine::lane(const std::string& name) {
  auto& lane = lanes_[name];
  if (!lane) lane = std::make_unique<Lane>();
  return *lane;
}

void CudaMachine::write(int64_t offset, const void* from, int64_t bytes) {
  Lane& l = lane("compute");
  l.copy_in(arena() + offset, from, bytes);
  l.synchronize();
}
void CudaMachine::read(int64_t offset, void* to, int64_t bytes) {
  Lane& l = lane("compute");
  l.copy_out(to, arena() + offset, bytes);
  l.synchronize();
}
void CudaMachine::fill(int64_t offset, int byte, int64_t bytes) {
  Lane& l = lane("compute");
  l.fill(arena() + offset, byte, bytes);
  l.synchronize();
}

namespace {

struct CudaStage {
  kernels::CudaLaunch launch;
  BoundCollective collective;  // instead of a launch
  kernels::Invocation invocation;
  Lane* lane = nullptr;
  std::string name;
  std::vector<kernels::Arg> args;
  std::vector<size_t> waits;   // stages of other lanes, by index
  std::optional<Event> event;  // recorded when another lane waits for this stage
};

// Device memory as collectives of one lane see it.
class LaneMemory final : public ArgumentMemory {
 public:
  explicit LaneMemory(Lane& lane) : lane_(lane) {}
  void fill(std::byte* at, int byte, int64_t bytes) override { lane_.fill(at, byte, bytes); }

 private:
  Lane& lane_;
};

}  // namespace

struct CudaExecutor::State {
  const Program& program;
  const Plan& plan;
  CudaMachine& machine;
  CudaOptions options;
  FindGroup groups;
  std::vector<Lane*> lanes;
  std::vector<LaneMemory> memory;  // per lane
  std::vector<CudaStage> stages;
  std::unordered_map<std::string, ValueId> names;
  std::vector<Event> joins;  // one per lane and one for the start
  device::cuda::Graph graph;
  Event begin{true}, end{true};  // of the last run
  device::cuda::GraphClock clock;
  double device_seconds = 0;
  Timeline timeline;
  std::optional<NonFinite> bad;
  int64_t runs = 0;
  bool meets_on_host = false;                      // some stage is a call that blocks
  bool waits_on_host = false;                      // or one of class host
  std::vector<comm::Communicator*> enqueued;       // groups whose calls are
  std::vector<int> captured;                       // of each, the calls that the graph holds
  Lane* messages = nullptr;                        // where enqueued messages go, whatever their lane
  std::vector<std::pair<StageId, StageId>> calls;  // of such messages: which are one
  std::optional<LaneThreads> threads;              // made when first asked for
  std::mutex mutex;                                // of `bad`, when lanes are threads

  State(const Program& p, const Plan& q, CudaMachine& m, const CudaOptions& o, const FindGroup& g)
      : program(p), plan(q), machine(m), options(o), groups(g) {}

  void run(const RunOptions& how);

  std::byte* address(ValueId v) const {
    const int64_t offset = plan.offset[static_cast<size_t>(v)];
    return offset < 0 ? nullptr : machine.spaces().of(program.values[static_cast<size_t>(v)].space) + offset;
  }

  std::span<std::byte> scratch_of(const Stage& stage) const {
    if (stage.scratch == kNoValue) return {};
    return {address(stage.scratch),
            static_cast<size_t>(num_bytes(program.values[static_cast<size_t>(stage.scratch)]))};
  }

  void bind(size_t s) {
    const Stage& stage = program.stages[s];
    CudaStage& bound = stages[s];
    bound.name = stage_name(stage);
    bound.lane = lanes[static_cast<size_t>(stage.lane)];
    for (const Use& use : stage.uses) {
      kernels::Arg arg;
      if (use.value != kNoValue) {
        const Value& v = program.values[static_cast<size_t>(use.value)];
        arg = {address(use.value), v.dtype, v.shape, use.access, true};
      }
      bound.args.push_back(arg);
    }
    kernels::name_arguments(bound.args, kernel_of(stage.op), stage.phase);
    bound.invocation = {bound.args, &program.attrs[static_cast<size_t>(stage.attrs)], nullptr,
                        scratch_of(stage)};
    if (class_of(stage.op) == OpClass::Store) bound.invocation.windows = windows_of(stage, groups);
    if (is_exchange(stage.op)) {
      bound.collective = bind_collective(program, stage, bound.invocation, groups);
      note_group(*bound.collective.group);
      // Both ends of a message lie on different lanes, and their group has one stream.
      if (class_of(stage.op) == OpClass::Transfer && !enqueued.empty()) {
        if (!messages) lanes.push_back(messages = &machine.lane(kMessageLane));
        bound.lane = messages;
      }
      return;
    }
    if (class_of(stage.op) == OpClass::Host) {
      waits_on_host = true;
      return;
    }
    const KernelKind kind = kernel_of(stage.op);
    const kernels::CudaPrepare prepare = kernels::find_cuda_kernel(kind, stage.phase);
    if (!prepare)
      base::fail("{}: the GPU has no kernel {} for this phase; device.kind = \"cpu\" has", bound.name,
                 name_of(kind));
    try {
      kernels::check_contract(kind, stage.phase, bound.invocation);
      kernels::check_scratch(kind, stage.phase, bound.invocation);
      bound.launch = prepare(bound.invocation, *bound.lane);
    } catch (const base::Error& e) {
      throw base::Error(e.code(), fmt::format("{}: {}", bound.name, e.what()));
    }
    if (!bound.launch)
      base::fail("{}: the GPU's kernel {} does not take these element types ({})", bound.name, name_of(kind),
                 kernels::types_of(bound.args));
  }

  void note_group(comm::Communicator& group) {
    if (group.meeting() == program::Meeting::OnHost) {
      meets_on_host = true;
    } else {
      if (std::find(enqueued.begin(), enqueued.end(), &group) == enqueued.end()) enqueued.push_back(&group);
    }
    if (meets_on_host && !enqueued.empty())
      base::fail_with(base::ExitCode::Internal, "program {}: some groups block, others are enqueued",
                      program.name);
  }
  program::Meeting meeting() const {
    return enqueued.empty() ? program::Meeting::OnHost : program::Meeting::OnDevice;
  }

  // Until the lane has done what is on it. With calls among it that wait for other ranks, these are watched.
  void wait_for(Lane& lane) {
    if (!enqueued.empty())
      while (!device::cuda::is_done(lane)) {
        for (comm::Communicator* group : enqueued) group->watch();
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    lane.synchronize();
  }

  using AtStage = std::function<void(size_t)>;

  // A stage, or all messages that are one call with it; the last of them.
  size_t run_call(size_t s, const AtStage& before, const AtStage& after) {
    const size_t end = messages ? static_cast<size_t>(calls[s].second) : s + 1;
    for (size_t member = s; member < end; ++member) await(member, before);
    comm::Communicator* const group = end > s + 1 ? stages[s].collective.group : nullptr;
    if (group) group->begin_messages();
    for (size_t member = s; member < end; ++member) start(member);
    if (group) group->end_messages();
    for (size_t member = s; member < end; ++member) finish(member, after);
    return end - 1;
  }

  void run_stage(size_t s, const AtStage& before, const AtStage& after) {
    await(s, before);
    start(s);
    finish(s, after);
  }

  void await(size_t s, const AtStage& before) {
    for (size_t w : stages[s].waits) stages[s].lane->wait(*stages[w].event);
    if (before) before(s);
  }

  void finish(size_t s, const AtStage& after) {
    if (after) after(s);
    if (stages[s].event) stages[s].lane->record(*stages[s].event);
  }

  void start(size_t s) {
    CudaStage& stage = stages[s];
    device::cuda::push_range(stage.name.c_str());
    try {
      if (stage.collective.run) {
        stage.collective(program.stages[s], stage.invocation,
                         memory[static_cast<size_t>(program.stages[s].lane)]);
      } else if (stage.launch) {
        stage.launch();
      } else {  // of class host
        wait_for(*stage.lane);
      }
    } catch (const base::Error& e) {
      throw base::Error(e.code(), fmt::format("{}: {}", stage.name, e.what()));
    }
    device::cuda::pop_range();
  }

  // Streams overlap by themselves; a lane whose stages wait on the host for other ranks must not hold up the others.
  bool lanes_need_threads(const RunOptions& how) const {
    return meets_on_host && lanes.size() > 1 && how.lanes_run();
  }

  // A thread per lane: an event is waited for once the thread of its lane has recorded it.
  void run_lane_threads(uint64_t delay_seed, const AtStage& before, const AtStage& after) {
    if (!threads) threads.emplace(program);
    threads->run(
        {0, static_cast<StageId>(stages.size())}, delay_seed,
        [&](StageId s) {
          device::cuda::enter_device();
          run_stage(static_cast<size_t>(s), before, after);
        },
        [&](const std::string& why) {
          for (const CudaStage& stage : stages)
            if (stage.collective.run) return stage.collective.group->abort(why);
        });
  }

  // All stages, ordered behind and before the first lane.
  void enqueue(const RunOptions& how, const AtStage& before, const AtStage& after) {
    Lane& first = *lanes[0];
    Event& start = joins[lanes.size()];
    first.record(start);
    for (size_t l = 1; l < lanes.size(); ++l) lanes[l]->wait(start);
    if (lanes_need_threads(how)) {
      run_lane_threads(how.delay_seed, before, after);
    } else {
      for (size_t s = 0; s < stages.size(); ++s) {
        s = run_call(s, before, after);
        if (how.in_order) wait_for(*stages[s].lane);  // streams would overlap
      }
    }
    for (size_t l = 1; l < lanes.size(); ++l) {
      lanes[l]->record(joins[l]);
      first.wait(joins[l]);
    }
  }

  void run_timed(const RunOptions& how) {
    std::vector<Event> begin, end;
    for (size_t s = 0; s < stages.size(); ++s) begin.emplace_back(true), end.emplace_back(true);
    Event start(true);
    lanes[0]->record(start);
    enqueue(
        how, [&](size_t s) { stages[s].lane->record(begin[s]); },
        [&](size_t s) { stages[s].lane->record(end[s]); });
    wait_for(*lanes[0]);
    for (size_t s = 0; s < stages.size(); ++s)
      timeline.spans[s] = {static_cast<StageId>(s),
                           static_cast<int64_t>(1e6 * Event::milliseconds(start, begin[s])),
                           static_cast<int64_t>(1e6 * Event::milliseconds(start, end[s]))};
  }

  // Stage by stage, reading back what each wrote: slow, only to name a culprit.
  void run_looking(const RunOptions& how) {
    struct Stop {};
    try {
      enqueue(how, {}, [&](size_t s) {
        wait_for(*stages[s].lane);
        look(s);
        if (!how.go_on && bad) throw Stop{};
      });
    } catch (const Stop&) {
    }
    for (Lane* lane : lanes) wait_for(*lane);
  }

  void look(size_t s) {
    const Stage& stage = program.stages[s];
    int32_t used_rows = 0;
    if (const int at = rows_use(stage); at >= 0) {
      const ValueId offsets = stage.uses[static_cast<size_t>(at)].value;
      const Value& v = program.values[static_cast<size_t>(offsets)];
      stages[s].lane->copy_out(&used_rows, address(offsets) + 4 * (v.shape[0] - 1), 4);
      stages[s].lane->synchronize();
    }
    for (const Use& use : stage.uses) {
      if (use.value == kNoValue || use.access == Access::Read) continue;
      const Value& v = program.values[static_cast<size_t>(use.value)];
      if (!tensor::is_float(v.dtype)) continue;
      int64_t n = num_elements(v);
      // Rows past the last expert's end are never written.
      if (v.maximum_rows > 0 && !v.shape.empty() && v.shape[0] > 0) n = used_rows * (n / v.shape[0]);
      const int64_t width = tensor::size_of(v.dtype);
      std::vector<std::byte> bytes(static_cast<size_t>(n * width));
      stages[s].lane->copy_out(bytes.data(), address(use.value), n * width);
      stages[s].lane->synchronize();
      NonFinite found;
      for (int64_t e = 0; e < n; ++e) {
        double x = 0;
        const std::byte* at = bytes.data() + e * width;
        if (v.dtype == tensor::Dtype::F64) {
          std::memcpy(&x, at, 8);
        } else if (v.dtype == tensor::Dtype::F32) {
          float f;
          std::memcpy(&f, at, 4);
          x = f;
        } else {
          uint16_t bits;
          std::memcpy(&bits, at, 2);
          x = tensor::widened(bits);
        }
        if (!std::isfinite(x) && found.count++ == 0) found.element = e, found.number = x;
      }
      if (found.count == 0) continue;
      found.stage = static_cast<StageId>(s);
      found.value = use.value;
      found.text = fmt::format("{} wrote {} non-finite of {} elements of '{}', the first is {} at element {}",
                               stages[s].name, found.count, n, v.name, found.number, found.element);
      std::lock_guard lock(mutex);
      if (!bad || found.stage < bad->stage) bad = found;
      return;
    }
  }
};

CudaExecutor::CudaExecutor(const Program& program, const Plan& plan, CudaMachine& machine,
                           const CudaOptions& options, const FindGroup& groups)
    : state_(std::make_unique<State>(program, plan, machine, options, groups)) {
  State& s = *state_;
  for (const auto& lane : program.lanes) s.lanes.push_back(&machine.lane(lane.name));
  for (Lane* lane : s.lanes) s.memory.emplace_back(*lane);
  for (Lane* lane : s.lanes) lane->may_tune = options.may_tune;
  for (size_t i = 0; i < program.values.size(); ++i)
    s.names.emplace(program.values[i].name, static_cast<ValueId>(i));
  s.stages.resize(program.stages.size());
  for (size_t i = 0; i < s.stages.size(); ++i) s.bind(i);
  require_ok(check_host_waits(program, s.meeting()), "program " + program.name);
  for (Lane* lane : s.lanes) lane->may_tune = false;
  // A lane that has waited for a stage need not wait for it, or an earlier one of that lane, again.
  const auto edges = data_edges(program);
  std::vector<std::vector<int64_t>> seen(s.lanes.size(), std::vector<int64_t>(s.lanes.size(), -1));
  if (s.messages) s.calls = message_calls(program, edge_list(program));
  const auto stream_of = [&](size_t stage) {
    return s.messages && s.stages[stage].lane == s.messages ? s.lanes.size() - 1
                                                            : static_cast<size_t>(program.stages[stage].lane);
  };
  for (size_t i = 0; i < s.stages.size(); ++i) {
    const size_t lane = stream_of(i);
    for (auto p = edges[i].rbegin(); p != edges[i].rend(); ++p) {
      const size_t from = stream_of(static_cast<size_t>(*p));
      if (from == lane || seen[lane][from] >= *p) continue;
      seen[lane][from] = *p;
      s.stages[i].waits.push_back(static_cast<size_t>(*p));
      auto& event = s.stages[static_cast<size_t>(*p)].event;
      if (!event) event.emplace();
    }
  }
  for (size_t l = 0; l <= s.lanes.size(); ++l) s.joins.emplace_back();
  s.timeline.spans.resize(s.stages.size());
  for (Lane* lane : s.lanes) lane->synchronize();
}

CudaExecutor::~CudaExecutor() = default;

void CudaExecutor::run(const RunOptions& options) {
  State& s = *state_;
  s.bad.reset();
  if (options.poison) base::fail("poisoned memory is a check of the CPU; device.kind = \"cpu\" has it");
  device::cuda::enter_device();
  try {
    s.run(options);
  } catch (const std::exception& e) {
    // Calls that are enqueued would wait for ever for ranks that are told nothing, and hold the device's memory.
    for (comm::Communicator* group : s.enqueued) group->abort(e.what());
    throw;
  }
}

void CudaExecutor::State::run(const RunOptions& how) {
  // A graph knows nothing of what happens on the host.
  const bool as_graph = !how.find_non_finite && !how.timing && how.lanes_run() && options.graph &&
                        !meets_on_host && !waits_on_host && runs > 0;
  if (as_graph && !graph.ready()) {
    graph.capture(*lanes[0], [&] {
      clock.start(*lanes[0]);
      enqueue(how, {}, {});
      clock.stop(*lanes[0]);
    });
    for (comm::Communicator* group : enqueued) captured.push_back(group->captured());
  }
  device_seconds = 0;
  lanes[0]->record(begin);
  if (how.find_non_finite) {
    run_looking(how);
  } else if (how.timing) {
    run_timed(how);
  } else if (as_graph) {
    for (size_t g = 0; g < enqueued.size(); ++g) enqueued[g]->launched(captured[g]);
    graph.launch(*lanes[0]);
  } else {
    enqueue(how, {}, {});
  }
  lanes[0]->record(end);
  wait_for(*lanes[0]);
  // The last marks were passed: what stands in the recorder is done.
  for (comm::Communicator* group : enqueued) group->watch();
  if (as_graph) device_seconds = clock.seconds();
  if (!how.find_non_finite) ++runs;
}

void* CudaExecutor::data(ValueId value) const {
  const Value& v = state_->program.values[static_cast<size_t>(value)];
  if (v.space != Space::Pinned)
    base::fail_with(base::ExitCode::Internal, "'{}' lies on the device; the host reaches pinned memory only",
                    v.name);
  return state_->address(value);
}

ValueId CudaExecutor::find(const std::string& name) const {
  const auto it = state_->names.find(name);
  if (it == state_->names.end())
    base::fail_with(base::ExitCode::Internal, "program {} has no value '{}'", state_->program.name, name);
  return it->second;
}

double CudaExecutor::seconds() const {
  return state_->runs == 0 ? 0 : Event::milliseconds(state_->begin, state_->end) / 1e3;
}
const Timeline& CudaExecutor::timeline() const { return state_->timeline; }
const std::optional<NonFinite>& CudaExecutor::non_finite() const { return state_->bad; }
double CudaExecutor::device_seconds() const { return state_->device_seconds; }
const Program& CudaExecutor::program() const { return state_->program; }
int64_t CudaExecutor::num_graph_nodes() const { return state_->graph.num_nodes(); }

}  // namespace pleat::interpret
