#include "program/program.h"

#include <algorithm>
#include <array>

#include "base/checked.h"

namespace pleat::program {
namespace {

struct OpRow {
  std::string_view name;
  OpClass op_class;
  KernelKind kernel;
  Region region;
  std::string_view modules;
};

constexpr OpRow kOps[] = {
#define PLEAT_OP(name, op_class, kernel, region, modules) \
  {#name, OpClass::op_class, KernelKind::kernel, Region::region, modules},
#include "program/ops.def"
};

constexpr std::string_view kKernelNames[] = {
#define PLEAT_KERNEL(name) #name,
#include "program/ops.def"
};

struct PhaseRow {
  KernelKind kernel;
  Phase phase;
  std::vector<Argument> arguments;
};

std::vector<PhaseRow> phase_rows() {
  return {
#define IN(x) Argument{.name = #x},
#define IN_IF(x) Argument{.name = #x, .optional = true},
#define IN_LIST(x) Argument{.name = #x, .repeated = true},
#define OUT(x) Argument{.name = #x, .output = true},
#define OUT_IF(x) Argument{.name = #x, .output = true, .optional = true},
#define SUM(x) Argument{.name = #x, .output = true, .may_update = true},
#define SUM_IF(x) Argument{.name = #x, .output = true, .optional = true, .may_update = true},
#define CHANGE(x) Argument{.name = #x, .output = true, .may_update = true, .in_place = true},
#define CHANGE_LIST(x) \
  Argument{.name = #x, .output = true, .may_update = true, .in_place = true, .repeated = true},
#define HOST(x) Argument{.name = #x, .on_host = true},
#define SCALE(x) Argument{.name = #x, .scale = true},
#define SCALE_OUT(x) Argument{.name = #x, .output = true, .scale = true},
#define SCALE_OUT_IF(x) Argument{.name = #x, .output = true, .optional = true, .scale = true},
#define ROWS(x) Argument{.name = #x, .rows = true},
#define ROWS_IF(x) Argument{.name = #x, .optional = true, .rows = true},
#define PLEAT_PHASE(kernel, phase, arguments) {KernelKind::kernel, Phase::phase, {arguments}},
#include "program/ops.def"
#undef IN
#undef IN_IF
#undef IN_LIST
#undef OUT
#undef OUT_IF
#undef SUM
#undef SUM_IF
#undef CHANGE
#undef CHANGE_LIST
#undef HOST
#undef SCALE
#undef SCALE_OUT
#undef SCALE_OUT_IF
#undef ROWS
#undef ROWS_IF
  };
}

using PhaseLists = std::array<std::vector<Argument>, 4>;

std::vector<PhaseLists> argument_table() {
  std::vector<PhaseLists> out(std::size(kKernelNames));
  for (PhaseRow& row : phase_rows())
    out[static_cast<size_t>(row.kernel)][static_cast<size_t>(row.phase)] = std::move(row.arguments);
  return out;
}

const OpRow& row_of(Op op) { return kOps[static_cast<size_t>(op)]; }

}  // namespace

int32_t Program::intern(AttrSet set) {
  std::sort(set.begin(), set.end(), [](const Attr& a, const Attr& b) { return a.key < b.key; });
  for (size_t i = 0; i < attrs.size(); ++i)
    if (attrs[i] == set) return static_cast<int32_t>(i);
  attrs.push_back(std::move(set));
  return static_cast<int32_t>(attrs.size() - 1);
}

int64_t num_elements(const Value& value) {
  int64_t n = 1;
  for (int64_t dim : value.shape) n = base::checked_mul(n, dim, value.name.c_str());
  return n;
}

int64_t num_bytes(const Value& value) {
  return base::checked_mul(num_elements(value), tensor::size_of(value.dtype), value.name.c_str());
}

ValueId root_of(const Program& program, ValueId value) {
  const Value& v = program.values[static_cast<size_t>(value)];
  return v.view_of == kNoValue ? value : v.view_of;
}

std::string_view name_of(Op op) { return row_of(op).name; }
std::string_view name_of(KernelKind kind) { return kKernelNames[static_cast<size_t>(kind)]; }
OpClass class_of(Op op) { return row_of(op).op_class; }
bool is_exchange(Op op) { return class_of(op) == OpClass::Collective || class_of(op) == OpClass::Transfer; }
Region region_of(Op op) { return row_of(op).region; }
KernelKind kernel_of(Op op) { return row_of(op).kernel; }
int num_ops() { return static_cast<int>(std::size(kOps)); }

bool in_module(Op op, std::string_view module) {
  std::string_view text = row_of(op).modules;
  while (!text.empty()) {
    const size_t space = text.find(' ');
    if (text.substr(0, space) == module) return true;
    if (space == std::string_view::npos) break;
    text.remove_prefix(space + 1);
  }
  return false;
}

const std::vector<Argument>& arguments_of(KernelKind kind, Phase phase) {
  static const auto table = argument_table();
  return table[static_cast<size_t>(kind)][static_cast<size_t>(phase)];
}

const std::vector<Argument>& arguments_of(Op op, Phase phase) { return arguments_of(kernel_of(op), phase); }

std::string_view name_of(Phase phase) {
  static constexpr std::string_view names[] = {"fwd", "dgrad", "wgrad", "update"};
  return names[static_cast<size_t>(phase)];
}
std::string_view name_of(Region region) {
  static constexpr std::string_view names[] = {"embedding", "attention", "mlp",      "router",
                                               "dispatch",  "experts",   "combine",  "shared_experts",
                                               "head",      "optimizer", "host_link"};
  return names[static_cast<size_t>(region)];
}
std::string_view name_of(Owner owner) {
  static constexpr std::string_view names[] = {"weights", "gradients", "optimizer", "activations",
                                               "routing", "workspace", "inputs",    "results"};
  return names[static_cast<size_t>(owner)];
}
std::string_view name_of(Life life) {
  static constexpr std::string_view names[] = {"step", "input", "result", "persistent"};
  return names[static_cast<size_t>(life)];
}
std::string_view name_of(Space space) {
  static constexpr std::string_view names[] = {"device", "pinned", "window"};
  return names[static_cast<size_t>(space)];
}
std::string_view name_of(OpClass op_class) {
  static constexpr std::string_view names[] = {"compute", "collective", "transfer", "copy",
                                               "store",   "host",       "update"};
  return names[static_cast<size_t>(op_class)];
}
std::string_view name_of(Group group) {  // spelled as layout::name_of(GroupKind) spells them
  static constexpr std::string_view names[] = {"none",
                                               "tp",
                                               "cp",
                                               "dp",
                                               "pp",
                                               "ep",
                                               "etp",
                                               "edp",
                                               "world",
                                               "tp-cp",
                                               "dp-cp",
                                               "tp-cp-dp",
                                               "etp-ep",
                                               "embedding",
                                               "dp-cp-inside",
                                               "dp-cp-across",
                                               "tp-cp-dp-inside",
                                               "tp-cp-dp-across",
                                               "edp-inside",
                                               "edp-across"};
  static_assert(std::size(names) == kNumGroups);
  return names[static_cast<size_t>(group)];
}
std::string_view name_of(Peer peer) {
  static constexpr std::string_view names[] = {"none", "next", "previous"};
  return names[static_cast<size_t>(peer)];
}

bool takes(const std::vector<Argument>& arguments, size_t num_uses) {
  const bool repeats =
      std::any_of(arguments.begin(), arguments.end(), [](const Argument& a) { return a.repeated; });
  return repeats ? num_uses + 1 >= arguments.size() : num_uses == arguments.size();
}

const Argument& argument_of(const std::vector<Argument>& arguments, size_t num_uses, size_t use_idx) {
  size_t list = 0;  // the argument that is a list, or none
  while (list < arguments.size() && !arguments[list].repeated) ++list;
  if (use_idx < list) return arguments[use_idx];
  const size_t behind = arguments.size() - list - 1;  // arguments behind the list
  return use_idx + behind < num_uses ? arguments[list] : arguments[use_idx + arguments.size() - num_uses];
}

namespace {

int use_marked(const Stage& stage, bool Argument::*mark) {
  const std::vector<Argument>& arguments = arguments_of(stage.op, stage.phase);
  if (!takes(arguments, stage.uses.size())) return -1;
  for (size_t i = 0; i < stage.uses.size(); ++i)
    if (argument_of(arguments, stage.uses.size(), i).*mark && stage.uses[i].value != kNoValue)
      return static_cast<int>(i);
  return -1;
}

}  // namespace

int host_use(const Stage& stage) { return use_marked(stage, &Argument::on_host); }
int rows_use(const Stage& stage) { return use_marked(stage, &Argument::rows); }

std::string stage_name(const Stage& stage) {
  std::string out{name_of(stage.phase)};
  if (stage.model) out += fmt::format(" model{}", stage.model);
  if (stage.microbatch >= 0) out += fmt::format(" mb{}", stage.microbatch);
  if (stage.chunk) out += fmt::format(" c{}", stage.chunk);
  if (stage.layer >= 0) out += fmt::format(" L{}", stage.layer);
  out += fmt::format(" {}", name_of(stage.op));
  if (stage.part) out += fmt::format(".{}", stage.part);
  if (stage.replay) out += " (replay)";
  return out;
}

}  // namespace pleat::program
