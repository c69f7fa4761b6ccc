#include "schedule/pass/saved.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <unordered_map>

namespace pleat::schedule {

using namespace program;

namespace {

// The module whose backward a stage of this op is, or what is computed again for it; empty: that of no module.
std::string_view module_of(Op op) {
  switch (op) {
    case Op::attn_norm:
    case Op::attn_norm_back:
      return "attn_norm";
    case Op::qkv:
    case Op::qkv_scaled:
    case Op::q_down:
    case Op::q_down_scaled:
    case Op::q_norm:
    case Op::q_norm_back:
    case Op::q_up:
    case Op::q_up_scaled:
    case Op::kv_down:
    case Op::kv_down_scaled:
    case Op::kv_norm:
    case Op::kv_norm_back:
    case Op::kv_up:
    case Op::kv_up_scaled:
    case Op::qk_rope:
    case Op::qk_rope_back:
    case Op::mla_pack:
      return "qkv";
    case Op::attention:
    case Op::context_attention:
    case Op::ring_attention:
    case Op::cp_columns:
    case Op::cp_gather:
    case Op::cp_scatter:
    case Op::cp_order:
    case Op::cp_shift:
    case Op::cp_split:
    case Op::cp_merge:
    case Op::cp_exchange:
      return "core_attention";
    case Op::attn_out:
    case Op::attn_out_scaled:
      return "attn_out";
    case Op::mlp_norm:
    case Op::mlp_norm_back:
      return "mlp_norm";
    case Op::expert_up:
    case Op::expert_up_scaled:
      return "expert_up";
    case Op::expert_act:
    case Op::mlp_act:
      return "activation";
    default:
      return {};
  }
}

bool of_forward(const Stage& s) { return s.phase == Phase::Forward && s.replay == 0; }
bool of_backward(const Stage& s) { return s.phase != Phase::Update && !of_forward(s); }

// How the stages use a root value.
struct RootUses {
  StageId last_forward = -1, first_backward = -1;
  StageId written_backward = -1;  // the stage of the backward that writes it
  bool forward_writes = false, other = false;
};

class SavedReader {
 public:
  explicit SavedReader(const Program& program) : p_(program), lives_(program.values.size()) {
    for (size_t s = 0; s < p_.stages.size(); ++s) note(static_cast<StageId>(s));
    sources_.resize(p_.values.size());
    for (size_t s = 0; s < p_.stages.size(); ++s) derive(static_cast<StageId>(s));
  }

  const RootUses& life(ValueId v) const { return lives_[static_cast<size_t>(v)]; }

  // Roots that the stage reads and a backward needs of the forward.
  std::vector<ValueId> saved(const Stage& stage) const {
    std::vector<ValueId> out;
    for (const Use& use : stage.uses) {
      if (use.value == kNoValue || use.access != Access::Read) continue;
      const ValueId root = root_of(p_, use.value);
      if (is_saved(root)) out.push_back(root);
      const auto& through = sources_[static_cast<size_t>(root)];
      out.insert(out.end(), through.begin(), through.end());
    }
    return out;
  }

 private:
  void note(StageId id) {
    const Stage& stage = p_.stages[static_cast<size_t>(id)];
    // Counts the host reads: it would wait for them once more.
    if (const int at = host_use(stage); at >= 0)
      lives_[static_cast<size_t>(root_of(p_, stage.uses[static_cast<size_t>(at)].value))].other = true;
    for (const Use& use : stage.uses) {
      if (use.value == kNoValue) continue;
      RootUses& life = lives_[static_cast<size_t>(root_of(p_, use.value))];
      const bool writes = use.access != Access::Read;
      if (of_forward(stage)) {
        life.forward_writes |= writes;
        life.other |= life.first_backward >= 0;
        if (class_of(stage.op) != OpClass::Transfer || writes) life.last_forward = id;
      } else if (of_backward(stage)) {
        if (writes) life.other |= life.written_backward >= 0, life.written_backward = id;
        if (life.first_backward < 0) life.first_backward = id;
      } else {
        life.other = true;
      }
    }
  }

  bool is_saved(ValueId root) const {
    const Value& v = p_.values[static_cast<size_t>(root)];
    const RootUses& l = lives_[static_cast<size_t>(root)];
    return v.life == Life::Step && v.space == Space::Device && l.forward_writes && !l.other &&
           l.written_backward < 0 && l.first_backward >= 0;
  }

  // Whether what the stage writes is made of values of the forward alone, and is no recomputation of them.
  void derive(StageId id) {
    const Stage& stage = p_.stages[static_cast<size_t>(id)];
    const KernelKind kind = kernel_of(stage.op);
    const bool codes = kind == KernelKind::quantize || kind == KernelKind::turn_codes;
    if (!of_backward(stage) || (stage.replay && !codes)) return;
    for (const Use& use : stage.uses) {
      if (use.value == kNoValue || use.access != Access::Read) continue;
      const ValueId root = root_of(p_, use.value);
      const Value& v = p_.values[static_cast<size_t>(root)];
      if (v.life == Life::Step && !is_saved(root) && sources_[static_cast<size_t>(root)].empty())
        return;
    }
    const std::vector<ValueId> from = saved(stage);
    for (const Use& use : stage.uses)
      if (use.value != kNoValue && use.access == Access::Write) {
        const ValueId root = root_of(p_, use.value);
        const RootUses& l = lives_[static_cast<size_t>(root)];
        if (l.written_backward == id && !l.forward_writes && !l.other)
          sources_[static_cast<size_t>(root)] = from;
      }
  }

  const Program& p_;
  std::vector<RootUses> lives_;
  std::vector<std::vector<ValueId>> sources_;  // of what a backward makes of saved values alone
};

}  // namespace

const std::vector<std::string_view>& offload_modules() {
  static const std::vector<std::string_view> all = {"attn_norm", "qkv",       "core_attention", "attn_out",
                                                    "mlp_norm",  "expert_up", "activation"};
  return all;
}

std::vector<SavedValue> saved_values(const Program& program, const std::vector<std::string>& modules,
                                     const std::vector<bool>& layers) {
  const SavedReader reader(program);
  const bool whole = modules.size() == 1 && modules.front() == "layer";
  std::unordered_map<ValueId, SavedValue> found;
  std::set<ValueId> shared;  // by several layers: there is always one that needs it
  for (const Stage& stage : program.stages) {
    if (!of_backward(stage) || stage.layer < 0 || stage.microbatch < 0) continue;
    if (!layers.empty() && !layers[static_cast<size_t>(stage.layer)]) continue;
    const auto module = whole ? modules.begin() : std::find(modules.begin(), modules.end(), module_of(stage.op));
    if (module == modules.end()) continue;
    const auto at = static_cast<size_t>(module - modules.begin());
    for (const ValueId v : reader.saved(stage)) {
      // Made for the whole step, ahead of it or over all microbatches.
      const Stage& last = program.stages[static_cast<size_t>(reader.life(v).last_forward)];
      if (program.values[static_cast<size_t>(v)].microbatch != stage.microbatch ||
          last.microbatch != stage.microbatch || last.chunk != stage.chunk)
        continue;
      const auto [entry, fresh] = found.try_emplace(v);
      SavedValue& s = entry->second;
      if (fresh)
        s = {v, stage.microbatch, stage.chunk, stage.layer, {}, reader.life(v).last_forward,
             reader.life(v).first_backward};
      if (s.layer != stage.layer) shared.insert(v);
      if (std::find(s.modules.begin(), s.modules.end(), at) == s.modules.end()) s.modules.push_back(at);
    }
  }
  std::vector<SavedValue> out;
  for (auto& [value, s] : found) {
    if (shared.contains(value)) continue;
    std::sort(s.modules.begin(), s.modules.end());
    out.push_back(std::move(s));
  }
  std::sort(out.begin(), out.end(), [](const SavedValue& a, const SavedValue& b) {
    const auto key = [](const SavedValue& s) {
      return std::tuple(s.microbatch, s.chunk, s.layer, s.modules.front(), s.value);
    };
    return key(a) < key(b);
  });
  return out;
}

}  // namespace pleat::schedule
