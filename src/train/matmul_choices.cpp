#include "train/matmul_choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/choices.h"
#include "report/record_json.h"

namespace pleat::train {
namespace {

using kernels::MatmulChoice;
using kernels::MatmulKey;
using kernels::MatmulMachine;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kFormat = "pleat matmul choices";
constexpr int64_t kVersion = 1, kMaxExtent = int64_t{1} << 40, kMaxChoices = 20'000;
constexpr size_t kMaxTextBytes = 200;

std::string hex_of(const std::array<uint64_t, 8>& words) {
  std::string out;
  for (uint64_t word : words) out += fmt::format("{:016x}", word);
  return out;
}

// One object whose keys must all be known and there; every error carries the place.
class Reader {
 public:
  Reader(const json& object, std::string where, std::initializer_list<const char*> keys)
      : object_(object), where_(std::move(where)) {
    if (!object.is_object()) base::fail("{}: is {}, needs an object", where_, object.type_name());
    for (const char* key : keys)
      if (!object.contains(key)) base::fail("{}: has no \"{}\"", where_, key);
    for (const auto& [key, value] : object.items())
      if (std::none_of(keys.begin(), keys.end(), [&, key = key](const char* k) { return key == k; }))
        base::fail("{}: \"{}\" is not a known key", where_, shortened(key));
  }

  int64_t integer(const char* key, int64_t least, int64_t most) const {
    const json& v = object_.at(key);
    const bool fits = v.is_number_unsigned() ? v.get<uint64_t>() <= uint64_t{INT64_MAX} : true;
    if (!v.is_number_integer() || !fits || v.get<int64_t>() < least || v.get<int64_t>() > most)
      base::fail("{}: \"{}\" is {}, needs an integer of {} to {}", where_, key, shown(v), least, most);
    return v.get<int64_t>();
  }
  bool boolean(const char* key) const {
    const json& v = object_.at(key);
    if (!v.is_boolean()) base::fail("{}: \"{}\" is {}, needs true or false", where_, key, shown(v));
    return v.get<bool>();
  }
  std::string text(const char* key) const {
    const json& v = object_.at(key);
    if (!v.is_string() || v.get_ref<const std::string&>().size() > kMaxTextBytes)
      base::fail("{}: \"{}\" is {}, needs a text of at most {} bytes", where_, key, shown(v), kMaxTextBytes);
    return v.get<std::string>();
  }
  double number(const char* key) const {
    const double v = report::number_from_json(object_.at(key), where_, key);
    if (!std::isfinite(v) || v < 0) base::fail("{}: \"{}\" is {}, needs a number from 0 on", where_, key, v);
    return v;
  }
  tensor::Dtype dtype(const char* key) const {
    const std::string name = text(key);
    if (name != "bf16" && name != "f32")
      base::fail("{}: \"{}\" is \"{}\", needs bf16 or f32", where_, key, name);
    return tensor::dtype_named(name);
  }
  std::array<uint64_t, 8> algorithm(const char* key) const {
    const std::string digits = text(key);
    std::array<uint64_t, 8> out{};
    if (digits.size() != 16 * out.size() || digits.find_first_not_of("0123456789abcdef") != std::string::npos)
      base::fail("{}: \"{}\" is \"{}\", needs {} digits of 0-9a-f", where_, key, digits, 16 * out.size());
    for (size_t i = 0; i < out.size(); ++i) out[i] = std::stoull(digits.substr(16 * i, 16), nullptr, 16);
    return out;
  }
  const std::string& where() const { return where_; }

 private:
  static std::string shortened(const std::string& s) { return s.substr(0, 60); }
  static std::string shown(const json& v) {
    return shortened(v.dump(-1, ' ', false, json::error_handler_t::replace));
  }
  const json& object_;
  std::string where_;
};

MatmulChoice choice_from(const json& object, std::string where) {
  const Reader r(
      object, std::move(where),
      {"for", "m", "n", "k", "layout", "in", "out", "adds", "bias", "algorithm", "workspace", "tflops"});
  const std::string layout = r.text("layout");
  if (layout != "NN" && layout != "NT" && layout != "TN" && layout != "TT")
    base::fail("{}: \"layout\" is \"{}\", needs NN, NT, TN or TT", r.where(), layout);
  MatmulChoice c;
  c.key = {r.integer("m", 1, kMaxExtent),
           r.integer("n", 1, kMaxExtent),
           r.integer("k", 0, kMaxExtent),
           layout[0] == 'T',
           layout[1] == 'T',
           r.dtype("in"),
           r.dtype("out"),
           r.boolean("adds"),
           r.boolean("bias")};
  c.what = r.text("for");
  c.algorithm = r.algorithm("algorithm");
  c.workspace = r.integer("workspace", 0, INT64_MAX);
  c.tflops = r.number("tflops");
  return c;
}

ordered_json to_object(const MatmulChoice& c) {
  return {{"for", c.what},
          {"m", c.key.m},
          {"n", c.key.n},
          {"k", c.key.k},
          {"layout", layout_of(c.key)},
          {"in", std::string(tensor::name_of(c.key.in))},
          {"out", std::string(tensor::name_of(c.key.out))},
          {"adds", c.key.adds},
          {"bias", c.key.bias},
          {"tflops", c.tflops},
          {"workspace", c.workspace},
          {"algorithm", hex_of(c.algorithm)}};
}

std::string text_of(const MatmulMachine& m) {
  return fmt::format("{}, cuBLASLt {}, cuDNN {}", m.device, m.cublas, m.cudnn);
}

}  // namespace

std::string to_json(const SavedChoices& saved) {
  std::string out = fmt::format(
      "{{\"format\": \"{}\", \"version\": {},\n \"device\": {}, \"cublas\": {}, \"cudnn\": {},\n "
      "\"choices\": "
      "[",
      kFormat, kVersion,
      ordered_json(saved.machine.device).dump(-1, ' ', false, ordered_json::error_handler_t::replace),
      saved.machine.cublas, saved.machine.cudnn);
  const char* between = "\n  ";
  for (const MatmulChoice& c : saved.choices) {
    out += between + to_object(c).dump();
    between = ",\n  ";
  }
  return out + "]}\n";
}

SavedChoices choices_from_json(std::string_view text, std::string_view where) {
  const std::string place(where);
  if (static_cast<int64_t>(text.size()) > kMaxMatmulChoicesBytes)
    base::fail("{}: has {} bytes, at most {} are read", place, text.size(), kMaxMatmulChoicesBytes);
  report::refuse_deep_json(text, place);
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded()) base::fail("{}: not valid JSON ({} bytes)", place, text.size());
  const Reader root(object, place, {"format", "version", "device", "cublas", "cudnn", "choices"});
  if (const std::string format = root.text("format"); format != kFormat)
    base::fail("{}: \"format\" is \"{}\", needs \"{}\"", place, format, kFormat);
  root.integer("version", kVersion, kVersion);
  SavedChoices out;
  out.machine = {root.text("device"), root.integer("cublas", 0, INT32_MAX),
                 root.integer("cudnn", 0, INT32_MAX)};
  const json& list = object.at("choices");
  if (!list.is_array()) base::fail("{}: \"choices\" is {}, needs a list", place, list.type_name());
  if (static_cast<int64_t>(list.size()) > kMaxChoices)
    base::fail("{}: holds {} choices, at most {} are read", place, list.size(), kMaxChoices);
  std::set<MatmulKey> keys;
  for (size_t i = 0; i < list.size(); ++i) {
    out.choices.push_back(choice_from(list[i], fmt::format("{}: choice {}", place, i)));
    if (const MatmulKey& key = out.choices.back().key; !keys.insert(key).second)
      base::fail("{}: choice {}: {} is there twice", place, i, kernels::text_of(key));
  }
  std::sort(out.choices.begin(), out.choices.end(),
            [](const MatmulChoice& a, const MatmulChoice& b) { return a.key < b.key; });
  return out;
}

TakenChoices take(const SavedChoices& saved, const MatmulMachine& now, std::string_view where) {
  const MatmulMachine& then = saved.machine;
  if (then.device != now.device || then.cublas != now.cublas)
    return {{},
            fmt::format("the algorithms of {} were measured on {}, here is {}: they are measured anew, and "
                        "bitwise equality with the former run is not claimed",
                        where, text_of(then), text_of(now))};
  std::string line =
      fmt::format("{} algorithms of dense products taken from {}", saved.choices.size(), where);
  if (then.cudnn != now.cudnn)
    line += fmt::format(
        "; it was written with cuDNN {}, here is {}: bitwise equality with the former run is "
        "not claimed",
        then.cudnn, now.cudnn);
  return {saved.choices, std::move(line)};
}

MatmulMachine matmul_machine() {
  const device::cuda::Facts facts = device::cuda::facts();
  return {facts.name, facts.cublas, facts.cudnn};
}

SavedChoices current_choices() { return {matmul_machine(), kernels::matmul_choices()}; }

}  // namespace pleat::train
