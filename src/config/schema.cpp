#include "config/schema.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_map>

#include "config/nearest.h"

namespace pleat::config {

namespace {

// Names people bring from other programs, by last component.
const std::unordered_map<std::string_view, std::string_view>& foreign_names() {
  static const std::unordered_map<std::string_view, std::string_view> names = {
      {"num_hidden_layers", "model.num_layers"},
      {"n_layer", "model.num_layers"},
      {"num_attention_heads", "model.num_heads"},
      {"num_key_value_heads", "model.num_kv_heads"},
      {"num_query_groups", "model.num_kv_heads"},
      {"kv_channels", "model.head_dim"},
      {"rms_norm_eps", "model.norm_eps"},
      {"intermediate_size", "model.ffn_hidden_size"},
      {"tie_word_embeddings", "model.tie_embeddings"},
      {"first_k_dense_replace", "model.leading_dense_layers"},
      {"moe_intermediate_size", "moe.ffn_hidden_size"},
      {"moe_ffn_hidden_size", "moe.ffn_hidden_size"},
      {"num_experts_per_tok", "moe.top_k"},
      {"moe_router_topk", "moe.top_k"},
      {"num_local_experts", "moe.num_experts"},
      {"n_routed_experts", "moe.num_experts"},
      {"norm_topk_prob", "moe.renormalize"},
      {"routed_scaling_factor", "moe.scaling_factor"},
      {"router_aux_loss_coef", "moe.aux_coef"},
      {"aux_loss_coeff", "moe.aux_coef"},
      {"n_group", "moe.num_groups"},
      {"topk_group", "moe.group_topk"},
      {"learning_rate", "optimizer.lr"},
      {"grad_clip", "optimizer.clip"},
      {"max_grad_norm", "optimizer.clip"},
      {"max_steps", "train.steps"},
      {"train_iters", "train.steps"},
      {"batch_size", "train.micro_batch"},
      {"grad_accum", "train.num_microbatches"},
      {"gradient_accumulation_steps", "train.num_microbatches"},
      {"tensor_model_parallel_size", "parallel.tp"},
      {"context_parallel_size", "parallel.cp"},
      {"pipeline_model_parallel_size", "parallel.pp"},
      {"virtual_pipeline_model_parallel_size", "parallel.vpp"},
      {"expert_model_parallel_size", "parallel.ep"},
      {"expert_tensor_parallel_size", "parallel.etp"},
      {"pipeline_model_parallel_layout", "parallel.pipeline_layout"},
  };
  return names;
}

std::string_view last_part(std::string_view path) { return path.substr(path.rfind('.') + 1); }

const std::vector<std::string>& sections() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const Key& key : schema())
      for (size_t dot = key.path.find('.'); dot != std::string::npos; dot = key.path.find('.', dot + 1)) {
        std::string name = key.path.substr(0, dot);
        if (std::find(out.begin(), out.end(), name) == out.end()) out.push_back(std::move(name));
      }
    return out;
  }();
  return names;
}

std::string number_text(double value, bool integer) {
  return integer ? fmt::format("{:.0f}", value) : fmt::format("{}", value);
}

bool holds_integers(const Value& value) { return value.index() == 1 || value.index() == 4; }

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\n' || c == '\t') {
      out += c == '\n' ? "\\n" : "\\t";  // the control characters a key may hold (Key::line_breaks)
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

std::string real_text(double value) {
  std::string out = fmt::format("{}", value);
  if (out.find_first_of(".en") == std::string::npos) out += ".0";
  return out;
}

struct ToText {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const { return fmt::format("{}", value); }
  std::string operator()(double value) const { return real_text(value); }
  std::string operator()(const std::string& value) const { return quoted(value); }
  template <class T>
  std::string operator()(const std::vector<T>& values) const {
    std::vector<std::string> parts;
    for (const T& value : values) parts.push_back((*this)(value));
    return fmt::format("[{}]", fmt::join(parts, ", "));
  }
};

}  // namespace

Key& Key::range(double lo, double hi) {
  has_range = true;
  low = lo;
  high = hi;
  return *this;
}

Key& Key::above(double lo, double hi) {
  low_open = true;
  return range(lo, hi);
}

Key& Key::below(double lo, double hi) {
  high_open = true;
  return range(lo, hi);
}

Key& Key::one_of(std::initializer_list<std::string> values) {
  choices = values;
  return *this;
}

Key& Key::when(Condition condition) {
  conditions.push_back(std::move(condition));
  return *this;
}

Key& Key::with_line_breaks() {
  line_breaks = true;
  return *this;
}

Key& Key::see(std::initializer_list<std::string> keys) {
  related = keys;
  return *this;
}

Key& Key::names_file() {
  is_path = true;
  return *this;
}

Key& Key::on_resume(OnResume rule) {
  resume = rule;
  return *this;
}

std::string_view text_of(OnResume rule) {
  switch (rule) {
    case OnResume::Free:
      return "may change";
    case OnResume::MayGrow:
      return "may grow; less needs --allow-change";
    case OnResume::WithFlag:
      return "may change with --allow-change";
    case OnResume::SameTokens:
      return "may change while the tokens stay the same; other tokens need --allow-change and are read from "
             "their start";
    case OnResume::Never:
      return "may not change; start a new run from the weights with --init";
    case OnResume::SameModel:
      return "may not change: it would be another model";
  }
  return "";
}

Value Key::default_value() const {
  static const Config defaults;
  return get(defaults);
}

std::string Key::type_name() const {
  static constexpr const char* kNames[] = {"true or false",    "an integer",         "a number",
                                           "a string",         "a list of integers", "a list of numbers",
                                           "a list of strings"};
  return kNames[default_value().index()];
}

std::string Key::allowed() const {
  if (!choices.empty()) {
    std::vector<std::string> names;
    for (const std::string& choice : choices) names.push_back(quoted(choice));
    return fmt::format("one of {}", fmt::join(names, ", "));
  }
  if (!has_range) return "";
  const bool integer = holds_integers(default_value());
  return fmt::format("{}{} to {}{}", low_open ? "above " : "", number_text(low, integer),
                     high_open ? "below " : "", number_text(high, integer));
}

std::string Key::applies_when() const {
  std::vector<std::string> texts;
  for (const Condition& condition : conditions) texts.push_back(condition.text);
  return fmt::format("{}", fmt::join(texts, ", and "));
}

const Condition* Key::unmet(const Config& config) const {
  for (const Condition& condition : conditions)
    if (!condition.holds(config)) return &condition;
  return nullptr;
}

const std::vector<Key>& schema() {
  static const std::vector<Key> table = [] {
    std::vector<Key> keys;
    // What holds for a section where a key says nothing else.
    const std::pair<std::vector<Key> (*)(), OnResume> parts[] = {{&model_keys, OnResume::SameModel},
                                                                 {&moe_keys, OnResume::SameModel},
                                                                 {&optimizer_keys, OnResume::WithFlag},
                                                                 {&run_keys, OnResume::Free},
                                                                 {&parallel_keys, OnResume::Free}};
    for (const auto& [part, rule] : parts)
      for (Key& key : part()) {
        if (!key.resume) key.resume = rule;
        keys.push_back(std::move(key));
      }
    return keys;
  }();
  return table;
}

const Key* find_key(std::string_view path) {
  static const std::unordered_map<std::string_view, const Key*> index = [] {
    std::unordered_map<std::string_view, const Key*> out;
    for (const Key& key : schema()) out.emplace(key.path, &key);
    return out;
  }();
  const auto found = index.find(path);
  return found == index.end() ? nullptr : found->second;
}

bool is_section(std::string_view path) {
  const std::vector<std::string>& names = sections();
  return std::find(names.begin(), names.end(), path) != names.end();
}

std::string nearest_key(std::string_view path) {
  // Bounds the work on hostile names; no real key is half as long.
  path = path.substr(0, 96);
  const std::string_view leaf = last_part(path);
  if (const auto found = foreign_names().find(leaf); found != foreign_names().end())
    return std::string(found->second);
  std::string best;
  size_t best_cost = 0;
  const auto offer = [&](std::string_view name, size_t cost) {
    if (!best.empty() && cost >= best_cost) return;
    best = name;
    best_cost = cost;
  };
  for (const std::string& section : sections()) offer(section, edit_distance(path, section));
  for (const Key& key : schema()) {
    offer(key.path, edit_distance(path, key.path));
    // A right name in the wrong section is as likely as a typo, so it costs one letter.
    offer(key.path, edit_distance(leaf, last_part(key.path)) * 2 + 1);
  }
  return best;
}

std::string to_text(const Value& value) { return std::visit(ToText{}, value); }

std::vector<std::string> all_keys() {
  std::vector<std::string> paths;
  for (const Key& key : schema()) paths.push_back(key.path);
  return paths;
}

}  // namespace pleat::config
