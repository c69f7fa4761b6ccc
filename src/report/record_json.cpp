#include "report/record_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/foreign_text.h"

namespace pleat::report {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

ordered_json number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

ordered_json to_json(const RouterHealth& health) {
  ordered_json out;
  out["layer"] = health.layer;
  out["load"] = health.load;
  out["max_over_mean"] = number(health.max_over_mean);
  out["min_over_mean"] = number(health.min_over_mean);
  out["entropy"] = number(health.entropy);
  out["cv"] = number(health.cv);
  out["dead"] = health.dead;
  out["dropped_share"] = number(health.dropped_share);
  out["logit_max"] = number(health.logit_max);
  out["logit_rms"] = number(health.logit_rms);
  out["bias_min"] = number(health.bias_min);
  out["bias_max"] = number(health.bias_max);
  return out;
}

ordered_json to_json(const CodeHealth& health) {
  ordered_json out;
  out["module"] = health.module;
  out["side"] = health.side;
  out["numbers"] = health.numbers;
  out["saturated"] = health.saturated;
  out["flushed"] = health.flushed;
  out["nan"] = health.nan;
  out["largest"] = number(health.largest);
  return out;
}

int64_t integer_of(const json& value, std::string_view where, std::string_view key) {
  const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= uint64_t{INT64_MAX} : true;
  if (!value.is_number_integer() || !fits)
    base::fail("{}: \"{}\" is {}, needs an integer", where, key, value.dump());
  return value.get<int64_t>();
}

// Reads known keys of one object; every error carries the place and the key.
class Fields {
 public:
  Fields(const json& object, std::string_view where) : object_(object), where_(where) {}

  void read(const char* key, double& into) const {
    if (const auto it = object_.find(key); it != object_.end()) into = number_from_json(*it, where_, key);
  }
  void read(const char* key, int64_t& into) const {
    if (const auto it = object_.find(key); it != object_.end()) into = integer_of(*it, where_, key);
  }
  void read(const char* key, std::string& into) const {
    const auto it = object_.find(key);
    if (it == object_.end()) return;
    if (!it->is_string()) base::fail("{}: \"{}\" is {}, needs a text", where_, key, it->type_name());
    into = it->get<std::string>();
  }
  void read(const char* key, int& into) const {
    int64_t wide = into;
    read(key, wide);
    if (wide < INT32_MIN || wide > INT32_MAX)
      base::fail("{}: \"{}\" is {}, needs 32 bits", where_, key, wide);
    into = static_cast<int>(wide);
  }
  void read(const char* key, std::map<std::string, double>& into) const {
    const auto it = object_.find(key);
    if (it == object_.end()) return;
    if (!it->is_object()) base::fail("{}: \"{}\" is {}, needs an object", where_, key, it->type_name());
    for (const auto& [name, value] : it->items()) into[name] = number_from_json(value, where_, name);
  }

 private:
  const json& object_;
  std::string_view where_;
};

CodeHealth codes_from(const json& object, std::string_view where) {
  if (!object.is_object()) base::fail("{}: \"codes\" holds {}, needs objects", where, object.type_name());
  CodeHealth health;
  const Fields fields(object, where);
  fields.read("module", health.module);
  fields.read("side", health.side);
  fields.read("numbers", health.numbers);
  fields.read("saturated", health.saturated);
  fields.read("flushed", health.flushed);
  fields.read("nan", health.nan);
  fields.read("largest", health.largest);
  for (const int64_t count : {health.numbers, health.saturated, health.flushed, health.nan})
    if (count < 0 || count > health.numbers)
      base::fail("{}: \"codes\" counts {} of {} numbers", where, count, health.numbers);
  return health;
}

RouterHealth health_from(const json& object, std::string_view where) {
  if (!object.is_object()) base::fail("{}: \"router\" holds {}, needs objects", where, object.type_name());
  RouterHealth health;
  const Fields fields(object, where);
  fields.read("layer", health.layer);
  fields.read("max_over_mean", health.max_over_mean);
  fields.read("min_over_mean", health.min_over_mean);
  fields.read("entropy", health.entropy);
  fields.read("cv", health.cv);
  fields.read("dead", health.dead);
  fields.read("dropped_share", health.dropped_share);
  fields.read("logit_max", health.logit_max);
  fields.read("logit_rms", health.logit_rms);
  fields.read("bias_min", health.bias_min);
  fields.read("bias_max", health.bias_max);
  if (const auto load = object.find("load"); load != object.end()) {
    if (!load->is_array()) base::fail("{}: \"load\" is {}, needs a list", where, load->type_name());
    for (const json& count : *load) {
      health.load.push_back(integer_of(count, where, "load"));
      if (health.load.back() < 0) base::fail("{}: \"load\" holds {}", where, health.load.back());
    }
  }
  return health;
}

}  // namespace

double number_from_json(const json& value, std::string_view where, std::string_view key) {
  if (value.is_number()) return value.get<double>();
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    if (text == "nan") return kUnknown;
    if (text == "inf") return std::numeric_limits<double>::infinity();
    if (text == "-inf") return -std::numeric_limits<double>::infinity();
  }
  base::fail("{}: \"{}\" is {}, needs a number or \"nan\", \"inf\", \"-inf\"", where, key,
             value.dump(-1, ' ', false, json::error_handler_t::replace));
}

void refuse_deep_json(std::string_view text, std::string_view where) {
  base::refuse_deep_json(text, 64, where);
}

std::string to_json_line(const StepRecord& record) {
  ordered_json out;
  out["step"] = record.step;
  out["loss"] = number(record.loss);
  for (const auto& [name, value] : record.aux) out["aux"][name] = number(value);
  for (const double loss : record.mtp_loss) out["mtp_loss"].push_back(number(loss));
  out["lr"] = number(record.lr);
  out["grad_norm"] = number(record.grad_norm);
  out["clip_scale"] = number(record.clip_scale);
  out["tokens"] = record.tokens;
  out["tokens_per_s"] = number(record.tokens_per_s);
  out["model_tflops"] = number(record.model_tflops);
  out["hardware_tflops"] = number(record.hardware_tflops);
  out["percent_of_gemm"] = number(record.percent_of_gemm);
  out["step_seconds"] = number(record.step_seconds);
  if (!std::isnan(record.wall_seconds)) out["wall_seconds"] = number(record.wall_seconds);
  out["refused_steps"] = record.refused_steps;
  for (const auto& [name, ms] : record.breakdown) out["breakdown"][name] = number(ms);
  if (record.eval) {
    out["eval"]["loss"] = number(record.eval->loss);
    // Only byte models have it; a number that is not known is not one that went wrong.
    if (!std::isnan(record.eval->bits_per_byte))
      out["eval"]["bits_per_byte"] = number(record.eval->bits_per_byte);
  }
  for (const RouterHealth& health : record.health) out["router"].push_back(to_json(health));
  for (const CodeHealth& health : record.codes) out["codes"].push_back(to_json(health));
  return out.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

StepRecord record_from_json_line(std::string_view line, std::string_view where) {
  refuse_deep_json(line, where);
  const json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded()) base::fail("{}: not valid JSON ({} bytes)", where, line.size());
  if (!object.is_object()) base::fail("{}: is {}, needs an object", where, object.type_name());
  if (!object.contains("step")) base::fail("{}: has no \"step\"", where);
  StepRecord record;
  const Fields fields(object, where);
  fields.read("step", record.step);
  fields.read("loss", record.loss);
  fields.read("lr", record.lr);
  fields.read("grad_norm", record.grad_norm);
  fields.read("clip_scale", record.clip_scale);
  fields.read("tokens", record.tokens);
  fields.read("tokens_per_s", record.tokens_per_s);
  fields.read("model_tflops", record.model_tflops);
  fields.read("hardware_tflops", record.hardware_tflops);
  fields.read("percent_of_gemm", record.percent_of_gemm);
  fields.read("step_seconds", record.step_seconds);
  fields.read("wall_seconds", record.wall_seconds);
  fields.read("refused_steps", record.refused_steps);
  fields.read("aux", record.aux);
  fields.read("breakdown", record.breakdown);
  if (const auto mtp = object.find("mtp_loss"); mtp != object.end()) {
    if (!mtp->is_array()) base::fail("{}: \"mtp_loss\" is {}, needs a list", where, mtp->type_name());
    for (const json& loss : *mtp) record.mtp_loss.push_back(number_from_json(loss, where, "mtp_loss"));
  }
  if (const auto eval = object.find("eval"); eval != object.end()) {
    if (!eval->is_object()) base::fail("{}: \"eval\" is {}, needs an object", where, eval->type_name());
    const Fields eval_fields(*eval, where);
    record.eval.emplace();
    eval_fields.read("loss", record.eval->loss);
    eval_fields.read("bits_per_byte", record.eval->bits_per_byte);
  }
  if (const auto router = object.find("router"); router != object.end()) {
    if (!router->is_array()) base::fail("{}: \"router\" is {}, needs a list", where, router->type_name());
    for (const json& layer : *router) record.health.push_back(health_from(layer, where));
  }
  if (const auto codes = object.find("codes"); codes != object.end()) {
    if (!codes->is_array()) base::fail("{}: \"codes\" is {}, needs a list", where, codes->type_name());
    for (const json& row : *codes) record.codes.push_back(codes_from(row, where));
  }
  return record;
}

}  // namespace pleat::report
