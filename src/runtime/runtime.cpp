#include "runtime/runtime.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "comm/windows/windows.h"
#include "device/cpu/host_memory.h"
#include "device/cuda/cuda.h"
#include "interpret/check/check.h"
#include "interpret/run/device_memory.h"
#include "runtime/cuda_carrier.h"
#include "runtime/require_memory.h"

namespace pleat::runtime {

using program::kNoValue;
using program::Life;
using program::Value;

Planned planned(program::Program program) {
  Planned out;
  out.program = std::move(program);
  interpret::require_ok(interpret::check(out.program), "program " + out.program.name);
  out.plan = interpret::plan(out.program);
  interpret::require_ok(interpret::check_plan(out.program, out.plan), "plan of program " + out.program.name);
  return out;
}

Device device_of(const std::string& kind) { return kind == "cuda" ? Device::Cuda : Device::Cpu; }

comm::Buffers buffers_of(Device device) {
  return device == Device::Cuda ? comm::Buffers::Device : comm::Buffers::Host;
}

Runtime::Runtime(std::vector<Planned> programs, const Options& options)
    : laps_(options.laps), programs_(std::move(programs)), pool_(options.num_threads) {
  PLEAT_CHECK(!programs_.empty(), "nothing to run: no program");
  require_same_state();
  int64_t bytes = 0, pinned = 0, window = 0;
  for (const Planned& p : programs_) {
    bytes = std::max(bytes, p.plan.arena_bytes), pinned = std::max(pinned, p.plan.pinned.arena_bytes);
    window = std::max(window, p.plan.window.arena_bytes);
  }
  const interpret::Plan& largest =
      std::max_element(programs_.begin(), programs_.end(), [](const Planned& a, const Planned& b) {
        return a.plan.arena_bytes < b.plan.arena_bytes;
      })->plan;
  if (options.device == Device::Cuda) {
    const device::cuda::Facts facts = device::cuda::facts();
    require_memory(largest, bytes + interpret::allocated_windows(window) + options.exchange_bytes,
                   {"the GPU", facts.free_bytes, facts.memory_bytes}, options.alike_in_process);
    const device::AvailableMemory host = device::available_host_memory();
    const int64_t staging = interpret::staging_bytes(plan());
    require_memory(largest, pinned + staging, {host.limit, host.bytes, host.all}, options.alike_in_process,
                   host_parts(pinned, staging));
    machine_ = std::make_shared<interpret::CudaMachine>(bytes, pinned, window);
    if (options.nan_memory) machine_->fill(0, 0xFF, bytes);
    carrier_ = options.carrier ? options.carrier(machine_.get(), {})
                               : std::make_unique<CudaCarrier>(*machine_, staging);
  } else {
    const device::AvailableMemory host = device::available_host_memory();
    require_memory(largest, bytes + pinned + window, {host.limit, host.bytes, host.all},
                   options.alike_in_process);
    arena_ = std::make_unique<device::Arena>(bytes);
    pinned_ = std::make_unique<device::Arena>(pinned);
    window_ = std::make_shared<device::Arena>(window > 0 ? window + comm::kWindowHeaderBytes : 0);
    if (options.nan_memory)
      std::memset(arena_->data(), 0xFF, static_cast<size_t>(bytes));
    else
      arena_->fill_pattern();
    if (options.carrier) carrier_ = options.carrier(nullptr, {arena_->data(), static_cast<size_t>(bytes)});
  }
  if (carrier_) staged_ = std::make_unique<checkpoint::StagedMemory>(*carrier_);
  laps_.done("memory");
  bind(options);
  laps_.done("kernels and their algorithms");
  for (checkpoint::Target& t : targets()) {
    std::string name = t.name;
    targets_.emplace(std::move(name), std::move(t));
  }
}

Runtime::Runtime(program::Program program, int num_threads, Device device)
    : Runtime(
          [&] {
            std::vector<Planned> one;
            one.push_back(runtime::planned(std::move(program)));
            return one;
          }(),
          {.device = device, .num_threads = num_threads}) {}

void Runtime::bind(const Options& options) {
  if (options.groups.open) {
    open_groups(options.groups, buffers_of(options.device));
    laps_.done("groups of ranks");
  }
  const auto bind_all = [&] { bind_programs(options); };
  if (options.bind_in_turn)
    options.bind_in_turn(bind_all);
  else
    bind_all();
}

void Runtime::open_groups(const Groups& groups, comm::Buffers buffers) {
  std::set<GroupLane> lanes;
  std::set<program::Group> windows;
  for (const Planned& p : programs_)
    for (const program::Stage& s : p.program.stages) {
      if (is_exchange(s.op)) lanes.emplace(s.group, interpret::group_lane(p.program, s));
      if (class_of(s.op) == program::OpClass::Store) windows.insert(s.group);
    }
  PLEAT_CHECK(windows.size() <= 1, "windows of {} groups: there is one header", windows.size());
  for (const program::Group group : windows)
    groups.share_windows(group, buffers,
                         machine_ ? std::shared_ptr<std::byte>(machine_, machine_->window())
                                  : std::shared_ptr<std::byte>(window_, window_->data()));
  groups.open(lanes, buffers, [this](const std::string& lane) -> void* {
    return machine_ ? machine_->lane(lane).stream() : nullptr;
  });
}

void Runtime::bind_programs(const Options& options) {
  for (const Planned& p : programs_) {
    if (machine_)
      executors_.push_back(std::make_unique<interpret::CudaExecutor>(
          p.program, p.plan, *machine_, interpret::CudaOptions{.graph = options.graph}, options.groups.find));
    else
      executors_.push_back(std::make_unique<interpret::Executor>(
          p.program, p.plan,
          interpret::SpaceMemory{arena_->data(), pinned_->data(), comm::behind_header(window_->data())},
          pool_, options.groups.find));
  }
}

void Runtime::require_same_state() const {
  std::map<std::string_view, int64_t> offsets;
  for (size_t i = 0; i < program().values.size(); ++i)
    if (program().values[i].life == Life::Persistent) offsets[program().values[i].name] = plan().offset[i];
  for (size_t p = 1; p < programs_.size(); ++p)
    for (size_t i = 0; i < program(p).values.size(); ++i) {
      const Value& v = program(p).values[i];
      if (v.life != Life::Persistent || v.view_of != kNoValue) continue;
      const auto first = offsets.find(v.name);
      if (first == offsets.end() || first->second != plan(p).offset[i])
        base::fail_with(base::ExitCode::Internal, "'{}' lies elsewhere in program {} than in program {}",
                        v.name, program(p).name, program().name);
    }
}

checkpoint::Bytes Runtime::bytes(program::ValueId value, size_t program) const {
  const Value& v = this->program(program).values[static_cast<size_t>(value)];
  const int64_t offset = plan(program).offset[static_cast<size_t>(value)], size = program::num_bytes(v);
  PLEAT_CHECK(v.life == Life::Persistent && offset >= 0, "'{}' does not live across steps", v.name);
  PLEAT_CHECK(v.space != program::Space::Window, "'{}' lives across steps in space {}", v.name,
              program::name_of(v.space));
  const bool pinned = v.space == program::Space::Pinned;
  if (!pinned && staged_) return {*staged_, offset, size};
  std::byte* space = !pinned ? arena_->data() : machine_ ? machine_->spaces().pinned : pinned_->data();
  return std::span(space + offset, static_cast<size_t>(size));
}

std::vector<checkpoint::Target> Runtime::targets() const {
  std::vector<checkpoint::Target> out;
  for (size_t i = 0; i < program().values.size(); ++i) {
    const Value& v = program().values[i];
    // Constants follow from the config; a view would say its value's numbers twice.
    if (v.life != Life::Persistent || v.owner == program::Owner::Inputs || v.view_of != kNoValue ||
        plan().offset[i] < 0)
      continue;
    out.push_back({v.name, v.dtype, v.shape, bytes(static_cast<program::ValueId>(i))});
  }
  return out;
}

const checkpoint::Target& Runtime::target(const std::string& name) const {
  const auto found = targets_.find(name);
  PLEAT_CHECK(found != targets_.end(), "this rank has no '{}'", name);
  return found->second;
}

std::vector<checkpoint::TensorRef> Runtime::tensors() const {
  std::vector<checkpoint::TensorRef> out;
  for (checkpoint::Target& t : targets())
    out.push_back({std::move(t.name), t.dtype, std::move(t.shape), t.bytes});
  return out;
}

void Runtime::read(const std::string& name, std::span<std::byte> to) const {
  const checkpoint::Target& t = target(name);
  PLEAT_CHECK(static_cast<int64_t>(to.size()) == t.bytes.size(), "'{}' has {} bytes, room for {}", name,
              t.bytes.size(), to.size());
  t.bytes.read(0, to);
}

std::byte* Runtime::on_device(const std::string& name) const {
  PLEAT_CHECK(machine_, "'{}' is on no GPU", name);
  for (size_t i = 0; i < program().values.size(); ++i)
    if (const Value& v = program().values[i]; v.name == name && v.life == Life::Persistent)
      return machine_->spaces().of(v.space) + plan().offset[i];
  base::fail_with(base::ExitCode::Internal, "this rank has no '{}'", name);
}

}  // namespace pleat::runtime
