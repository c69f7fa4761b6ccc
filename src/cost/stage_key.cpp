#include "cost/stage_key.h"

#include <fmt/format.h>

#include "base/error.h"

namespace pleat::cost {
namespace {

struct ListedAttr {
  std::string_view key;
  AttrRole role;
};

constexpr ListedAttr kAttrs[] = {
    // Attention.
    {"heads", AttrRole::Size},
    {"kv_heads", AttrRole::Size},
    {"head_dim", AttrRole::Size},
    {"v_head_dim", AttrRole::Size},
    {"rotary_dim", AttrRole::Size},
    {"nope_dim", AttrRole::Size},
    {"rope_dim", AttrRole::Size},
    {"v_dim", AttrRole::Size},
    {"window", AttrRole::Size},
    {"seq_len", AttrRole::Size},
    {"interleaved", AttrRole::Path},
    {"full_norm", AttrRole::Path},
    {"documents", AttrRole::Path},
    {"deterministic", AttrRole::Path},
    // The first step of a ring sees its own keys, the others those of one other rank each.
    {"step", AttrRole::Switch},
    // Widths and parts that are put beside each other.
    {"a", AttrRole::Size},
    {"b", AttrRole::Size},
    {"c", AttrRole::Size},
    {"parts", AttrRole::Size},
    {"begin", AttrRole::Nothing},  // where columns lie, not how many
    {"column", AttrRole::Nothing},
    {"v_column", AttrRole::Nothing},
    // Experts.
    {"activation", AttrRole::Path},
    {"score", AttrRole::Path},
    {"pre_softmax", AttrRole::Path},
    {"renormalize", AttrRole::Path},
    {"renormalize_single", AttrRole::Path},
    {"sinkhorn", AttrRole::Path},
    {"training", AttrRole::Path},
    {"hf", AttrRole::Path},
    {"pad", AttrRole::Path},
    {"policy", AttrRole::Path},
    {"experts", AttrRole::Size},
    {"top_k", AttrRole::Size},
    {"groups", AttrRole::Size},
    {"group_topk", AttrRole::Size},
    {"group_score_topk", AttrRole::Size},
    {"experts_per_rank", AttrRole::Size},
    {"copies", AttrRole::Size},
    {"ranks", AttrRole::Size},
    {"capacity", AttrRole::Size},
    {"budget", AttrRole::Size},
    {"part", AttrRole::Size},
    {"pieces", AttrRole::Size},
    {"sms", AttrRole::Size},
    {"recipe", AttrRole::Path},
    {"turned", AttrRole::Path},
    // A loss or a noise that nobody asked for is not computed.
    {"micro_coef", AttrRole::Switch},
    {"seq_coef", AttrRole::Switch},
    {"global_coef", AttrRole::Switch},
    {"z_coef", AttrRole::Switch},
    {"bias_std", AttrRole::Switch},
    {"loaded_bias", AttrRole::Switch},
    // Numbers to compute with.
    {"eps", AttrRole::Nothing},
    {"scale", AttrRole::Nothing},
    {"limit", AttrRole::Nothing},
    {"alpha", AttrRole::Nothing},
    {"weight", AttrRole::Nothing},
    {"rate", AttrRole::Nothing},
    {"clip", AttrRole::Nothing},
    {"beta1", AttrRole::Nothing},
    {"beta2", AttrRole::Nothing},
    {"weight_decay", AttrRole::Nothing},
    {"lr_mult", AttrRole::Nothing},
    // Which one it is of several: keys of random numbers, divisors, axes, shifts by so many rows.
    {"layer", AttrRole::Nothing},
    {"num_layers", AttrRole::Nothing},
    {"depth", AttrRole::Nothing},
    {"group", AttrRole::Nothing},
    {"max", AttrRole::Nothing},
    // Said by the shapes: what a rank holds of a tensor, of its blocks, of a vocabulary.
    {"shard", AttrRole::Nothing},
    {"elements", AttrRole::Nothing},
    {"vocabulary", AttrRole::Nothing},
};

const ListedAttr* listed_attr(std::string_view key) {
  for (const ListedAttr& a : kAttrs)
    if (a.key == key) return &a;
  return nullptr;
}

std::vector<int64_t> even_shape(const program::Value& value) {
  std::vector<int64_t> shape = value.shape;
  if (value.expected_rows > 0 && !shape.empty()) shape[0] = value.expected_rows;
  return shape;
}

std::string type_text(const program::Program& program, const program::Use& use) {
  if (use.value == program::kNoValue) return "-";
  const program::Value& value = program.values[static_cast<size_t>(use.value)];
  std::string out(tensor::name_of(value.dtype));
  if (use.access == program::Access::Update) out += '+';
  if (value.space != program::Space::Device) out += fmt::format("@{}", program::name_of(value.space));
  return out;
}

}  // namespace

AttrRole attr_role(std::string_view key) {
  const ListedAttr* listed = listed_attr(key);
  return listed ? listed->role : AttrRole::Path;
}

bool attr_is_listed(std::string_view key) { return listed_attr(key) != nullptr; }

bool has_cost_key(const program::Stage& stage) {
  const program::OpClass of = program::class_of(stage.op);
  return !program::is_exchange(stage.op) && of != program::OpClass::Store && of != program::OpClass::Host;
}

StageKey stage_key(const program::Program& program, const program::Stage& stage) {
  PLEAT_CHECK(has_cost_key(stage), "{} takes as long as other ranks let it", program::stage_name(stage));
  StageKey out;
  out.kind =
      fmt::format("{} {}", program::name_of(program::kernel_of(stage.op)), program::name_of(stage.phase));
  const std::vector<program::Argument>& arguments = program::arguments_of(stage.op, stage.phase);
  const size_t n = stage.uses.size();
  for (size_t i = 0; i < n;) {
    const program::Use& use = stage.uses[i];
    const program::Argument& argument = program::argument_of(arguments, n, i);
    if (!argument.repeated) {
      out.kind += ' ' + type_text(program, use);
      if (use.value != program::kNoValue)
        for (const int64_t d : even_shape(program.values[static_cast<size_t>(use.value)]))
          out.dims.push_back(d);
      ++i;
      continue;
    }
    // A list: types in the order in which they first change, how many values and elements.
    std::string last;
    int64_t count = 0, elements = 0;
    for (; i < n && &program::argument_of(arguments, n, i) == &argument; ++i, ++count) {
      const std::string type = type_text(program, stage.uses[i]);
      if (type != last) out.kind += (last.empty() ? " [" : " ") + type;
      last = type;
      if (stage.uses[i].value == program::kNoValue) continue;
      int64_t size = 1;
      for (const int64_t d : even_shape(program.values[static_cast<size_t>(stage.uses[i].value)])) size *= d;
      elements += size;
    }
    out.kind += ']';
    out.dims.push_back(count);
    out.dims.push_back(elements);
  }
  for (const program::Attr& a : program.attrs[static_cast<size_t>(stage.attrs)]) {
    switch (attr_role(a.key)) {
      case AttrRole::Size:
        // None of it is another path, and has no logarithm.
        if (a.number > 0)
          out.dims.push_back(static_cast<int64_t>(a.number));
        else
          out.kind += fmt::format(" {}=0", a.key);
        break;
      case AttrRole::Path:
        out.kind += fmt::format(" {}={}", a.key, a.number);
        break;
      case AttrRole::Switch:
        out.kind += fmt::format(" {}={}", a.key, a.number != 0 ? "on" : "off");
        break;
      case AttrRole::Nothing:
        break;
    }
  }
  return out;
}

}  // namespace pleat::cost
