#include "runtime/runtime.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "comm/windows/windows.h"
#include "device/cpu/host_memory.h"
#include "device/cuda/cuda.h"
#include "interpret/check/check.h"
#include "interpret/run/device_memory.h"
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
    const int64_t mirror = interpret::host_mirror(plan());
    require_memory(largest, pinned + mirror, {host.limit, host.bytes, host.all}, options.alike_in_process,
                   host_parts(pinned, mirror));
    machine_ = std::make_shared<interpret::CudaMachine>(bytes, pinned, window);
    if (options.nan_memory) machine_->fill(0, 0xFF, bytes);
    arena_ = std::make_unique<device::Arena>(mirror);
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
  }
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

std::byte* Runtime::host(program::ValueId value, size_t program) const {
  const int64_t offset = plan(program).offset[static_cast<size_t>(value)];
  PLEAT_CHECK(offset >= 0 && offset < plan(program).persistent_bytes, "'{}' does not live across steps",
              this->program(program).values[static_cast<size_t>(value)].name);
  return arena_->data() + offset;
}

void Runtime::push(program::ValueId value, size_t program) {
  if (!machine_) return;
  machine_->write(plan(program).offset[static_cast<size_t>(value)], host(value, program),
                  program::num_bytes(this->program(program).values[static_cast<size_t>(value)]));
}

void Runtime::push_all() {
  if (machine_) machine_->write(0, arena_->data(), plan().persistent_bytes);
}

void Runtime::pull_all() const {
  if (machine_) machine_->read(0, arena_->data(), plan().persistent_bytes);
}

std::vector<checkpoint::Target> Runtime::targets() const {
  std::vector<checkpoint::Target> out;
  for (size_t i = 0; i < program().values.size(); ++i) {
    const Value& v = program().values[i];
    // Constants follow from the config; a view would say its value's numbers twice.
    if (v.life != Life::Persistent || v.owner == program::Owner::Inputs || v.view_of != kNoValue ||
        plan().offset[i] < 0)
      continue;
    PLEAT_CHECK(v.space == program::Space::Device || v.space == program::Space::Pinned,
                "'{}' lives across steps in space {}", v.name, program::name_of(v.space));
    std::byte* const space = v.space == program::Space::Device ? arena_->data()
                             : machine_                        ? machine_->spaces().pinned
                                                               : pinned_->data();
    out.push_back(
        {v.name, v.dtype, v.shape, {space + plan().offset[i], static_cast<size_t>(program::num_bytes(v))}});
  }
  return out;
}

const checkpoint::Target& Runtime::target(const std::string& name) const {
  const auto found = targets_.find(name);
  PLEAT_CHECK(found != targets_.end(), "this rank has no '{}'", name);
  return found->second;
}

int64_t Runtime::offset_of(const checkpoint::Target& target) const {
  PLEAT_CHECK(target.bytes.data() >= arena_->data() && target.bytes.data() < arena_->data() + arena_->size(),
              "'{}' does not lie in the device's memory", target.name);
  return target.bytes.data() - arena_->data();
}

bool Runtime::is_mirrored(const checkpoint::Target& target) const {
  return machine_ && target.bytes.data() >= arena_->data() &&
         target.bytes.data() + target.bytes.size() <= arena_->data() + arena_->size();
}

void Runtime::push_state() {
  if (!machine_) return;
  for (const auto& [name, t] : targets_)
    if (is_mirrored(t)) machine_->write(offset_of(t), t.bytes.data(), static_cast<int64_t>(t.bytes.size()));
}

void Runtime::pull_state() const {
  if (!machine_) return;
  for (const auto& [name, t] : targets_)
    if (is_mirrored(t)) machine_->read(offset_of(t), t.bytes.data(), static_cast<int64_t>(t.bytes.size()));
}

std::vector<checkpoint::TensorRef> Runtime::tensors() const {
  pull_state();
  std::vector<checkpoint::TensorRef> out;
  for (checkpoint::Target& t : targets())
    out.push_back({std::move(t.name), t.dtype, std::move(t.shape), t.bytes});
  return out;
}

void Runtime::read(const std::string& name, std::span<std::byte> to) const {
  const checkpoint::Target& t = target(name);
  PLEAT_CHECK(to.size() == t.bytes.size(), "'{}' has {} bytes, room for {}", name, t.bytes.size(), to.size());
  if (is_mirrored(t))
    machine_->read(offset_of(t), to.data(), static_cast<int64_t>(to.size()));
  else
    std::memcpy(to.data(), t.bytes.data(), to.size());
}

}  // namespace pleat::runtime
