// Checks of a whole Config, in this order: every value in its range, then the few structures the conditions
// rely on, then keys without effect, then combinations. Each message names the key, its value and a way out.
#include "config/validate.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "config/nearest.h"
#include "config/quote.h"
#include "config/schema.h"

namespace pleat::config {

namespace {

constexpr size_t kLongestText = 4096;
constexpr size_t kLongestList = 4096;

void check_number(const Key& key, double value) {
  if (!key.has_range) return;
  const bool low_ok = key.low_open ? value > key.low : value >= key.low;
  const bool high_ok = key.high_open ? value < key.high : value <= key.high;
  // Written so that a NaN fails.
  if (low_ok && high_ok) return;
  const bool open = low_ok ? key.high_open : key.low_open;
  const double bound = low_ok ? key.high : key.low;
  if (open)
    base::fail("{} = {} is out of range: needed is {}; it must be {} {}", key.path, value, key.allowed(),
               low_ok ? "below" : "above", bound);
  base::fail("{} = {} is out of range: needed is {}; the nearest bound is {}", key.path, value, key.allowed(),
             bound);
}

// Letters do not tell that a GPU is "cuda" here: words other programs have for a choice come first.
std::string nearest_choice(const Key& key, const std::string& value) {
  constexpr std::pair<const char*, const char*> kElsewhere[] = {
      {"gpu", "cuda"}, {"nvidia", "cuda"}, {"bf16", "bfloat16"}, {"fp32", "float32"}, {"fp64", "float64"}};
  std::string word = value.substr(0, 96);
  for (char& c : word)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  for (const auto& [elsewhere, here] : kElsewhere)
    if (word == elsewhere && std::find(key.choices.begin(), key.choices.end(), here) != key.choices.end())
      return here;
  return nearest_word(word, key.choices);
}

void check_text(const Key& key, const std::string& value) {
  if (value.size() > kLongestText)
    base::fail("{} = {} is {} bytes long; at most {} are allowed", key.path, quote(value), value.size(),
               kLongestText);
  for (const char c : value)
    if ((static_cast<unsigned char>(c) < 0x20 || c == 0x7f) && !(key.line_breaks && (c == '\n' || c == '\t')))
      base::fail("{} = {} holds a control character (code {}); remove it", key.path, quote(value),
                 static_cast<int>(c));
  if (key.choices.empty()) return;
  for (const std::string& choice : key.choices)
    if (choice == value) return;
  base::fail("{} = {} is not known: needed is {}; the nearest is \"{}\"", key.path, quote(value),
             key.allowed(), nearest_choice(key, value));
}

struct CheckValue {
  const Key& key;
  void operator()(bool) const {}
  void operator()(int64_t value) const { check_number(key, static_cast<double>(value)); }
  void operator()(double value) const { check_number(key, value); }
  void operator()(const std::string& value) const { check_text(key, value); }
  template <class T>
  void operator()(const std::vector<T>& values) const {
    if (values.size() > kLongestList)
      base::fail("{} holds {} values; at most {} are allowed", key.path, values.size(), kLongestList);
    for (const T& value : values) (*this)(value);
  }
};

void check_no_repeats(const char* path, const std::vector<std::string>& names) {
  std::set<std::string> seen;
  for (const std::string& name : names)
    if (!seen.insert(name).second)
      base::fail("{} = {} names \"{}\" twice; name each once", path, to_text(names), name);
}

void check_layer_pattern(const Config& c) {
  const ModelConfig& m = c.model;
  const std::vector<int64_t>& freq = m.moe_layer_freq;
  if (freq.empty())
    base::fail(
        "model.moe_layer_freq = [] names no layer; give one number n (every n-th layer), or a 0 or 1 for "
        "each "
        "of the {} layers",
        m.num_layers);
  if (freq.size() == 1) {
    if (freq[0] < 1)
      base::fail(
          "model.moe_layer_freq = {} must be at least 1 (every layer); for a dense model set moe.num_experts "
          "= 0",
          freq[0]);
    return;
  }
  if (static_cast<int64_t>(freq.size()) != m.num_layers)
    base::fail(
        "model.moe_layer_freq has {} entries but model.num_layers = {}; give one number, or a 0 or 1 per "
        "layer",
        freq.size(), m.num_layers);
  for (size_t layer = 0; layer < freq.size(); ++layer) {
    if (freq[layer] > 1)
      base::fail(
          "model.moe_layer_freq holds {} for layer {}; a list with one entry per layer holds 0 and 1 only",
          freq[layer], layer);
    if (freq[layer] == 1 && static_cast<int64_t>(layer) < m.leading_dense_layers)
      base::fail(
          "model.moe_layer_freq makes layer {} MoE but model.leading_dense_layers = {} makes it dense; "
          "change "
          "one of them",
          layer, m.leading_dense_layers);
  }
}

void check_effect(const Key& key, const Config& c) {
  const bool asked = c.asked.contains(key.path);
  if (!asked && (!key.present(c) || key.get(c) == key.default_value())) return;
  const Condition* unmet = key.unmet(c);
  if (unmet == nullptr) return;
  std::string now;
  for (const std::string& path : unmet->decided_by)
    now += fmt::format("{}{} = {}", now.empty() ? " (now " : ", ", path,
                       printable(to_text(find_key(path)->get(c))));
  if (!now.empty()) now += ")";
  base::fail("{} = {} has no effect here: it applies when {}{}; change that or remove {}", key.path,
             printable(to_text(key.get(c))), unmet->text, now, key.path);
}

void check_groups(const Config& c) {
  for (const auto& [name, group] : c.optimizer.groups)
    if (find_key("optimizer.groups." + name + ".lr_mult") == nullptr)
      base::fail("optimizer.groups.{} is not a parameter group; the nearest is \"{}\"", printable(name),
                 nearest_word(std::string_view(name).substr(0, 96), group_names()));
}

// What each value may be, and the structures conditions rely on.
void check_values(const Config& config) {
  check_groups(config);
  for (const Key& key : schema()) {
    const Value value = key.get(config);
    // A default such as "-1: unset" need not be a value one may ask for.
    if (config.asked.contains(key.path) || value != key.default_value()) std::visit(CheckValue{key}, value);
  }
  if (config.moe.num_experts > 0) check_layer_pattern(config);
  check_no_repeats("moe.load_balancing", config.moe.load_balancing);
  check_no_repeats("recompute.modules", config.recompute.modules);
  check_no_repeats("offload.modules", config.offload.modules);
  check_no_repeats("precision.modules", config.precision.modules);
  check_no_repeats("optimizer.freeze", config.optimizer.freeze);
}

}  // namespace

void validate(const Config& config) {
  check_values(config);
  for (const Key& key : schema()) check_effect(key, config);
  validate_model(config);
  if (config.moe.num_experts > 0) validate_moe(config);
  validate_run(config);
  validate_offload(config);
  validate_parallel(config);
  validate_device(config);
}

void validate_record(const Config& config) {
  check_values(config);
  validate_model(config);
  if (config.moe.num_experts > 0) validate_moe(config);
}

}  // namespace pleat::config
