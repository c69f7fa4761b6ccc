#include "report/run_data.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/regular_file.h"
#include "report/jsonl_log.h"
#include "report/record_json.h"

namespace pleat::report {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr uintmax_t kMaxJsonBytes = uintmax_t{256} << 20;
constexpr const char* kTexts[] = {"run", "config", "state_sha256", "sample"};
constexpr const char* kNumbers[] = {"steps",
                                    "final_loss",
                                    "best_eval_loss",
                                    "validation_loss",
                                    "validation_tokens",
                                    "validation_bits_per_byte",
                                    "bigram_bits_per_byte",
                                    "tokens",
                                    "tokens_per_s",
                                    "model_tflops",
                                    "hardware_tflops",
                                    "gemm_peak_tflops",
                                    "wall_seconds",
                                    "outside_bytes",
                                    "refused_steps",
                                    "planned_peak_bytes",
                                    "measured_peak_bytes"};

std::string read_text(const std::string& path) {
  base::require_regular(path);
  const uintmax_t size = std::filesystem::file_size(path);
  if (size > kMaxJsonBytes) base::fail("{} has {} bytes, at most {} are read", path, size, kMaxJsonBytes);
  std::string text(size, '\0');
  std::ifstream in(path, std::ios::binary);
  if (!in.read(text.data(), static_cast<std::streamsize>(size)))
    base::fail_with(base::ExitCode::Storage, "cannot read {}: {}", path, std::strerror(errno));
  return text;
}

int64_t line_at(const std::string& text, size_t byte) {
  return 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(std::min(byte, text.size())),
                        '\n');
}

template <class Json>
Json parse(const std::string& text, const std::string& path) {
  refuse_deep_json(text, path);
  try {
    return Json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    base::fail("{}:{}: not valid JSON near byte {}", path, line_at(text, error.byte), error.byte);
  } catch (const nlohmann::json::exception&) {
    base::fail("{}: not valid JSON", path);
  }
}

std::string dumped(const ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}

template <size_t N>
bool is_in(const char* const (&names)[N], const std::string& key) {
  return std::any_of(std::begin(names), std::end(names), [&](const char* name) { return key == name; });
}

RunSummary read_summary(const std::string& path) {
  const std::string text = read_text(path);
  const auto object = parse<ordered_json>(text, path);
  if (!object.is_object()) base::fail("{}:1: is {}, needs an object", path, object.type_name());
  RunSummary summary;
  for (const auto& [key, value] : object.items()) {
    if (value.is_null()) continue;
    // The first place that spells the key: right for every file the trainer writes.
    const std::string where = fmt::format("{}:{}", path, line_at(text, text.find("\"" + key + "\"")));
    if (is_in(kNumbers, key)) {
      summary.numbers[key] = number_from_json(json(value), where, key);
    } else if (is_in(kTexts, key)) {
      summary.texts[key] = value.is_string() ? value.get<std::string>() : dumped(value, 2);
    } else if (key == "memory_by_owner") {
      if (!value.is_object()) base::fail("{}: \"{}\" is {}, needs an object", where, key, value.type_name());
      for (const auto& [owner, bytes] : value.items()) {
        const double number = number_from_json(json(bytes), where, owner);
        if (!(number >= 0 && number <= kMaxBytes))
          base::fail("{}: \"{}\" has {} bytes, needs a number from 0 to 1e18", where, owner, number);
        summary.memory_by_owner.emplace_back(owner, number);
      }
      std::stable_sort(summary.memory_by_owner.begin(), summary.memory_by_owner.end(),
                       [](const auto& a, const auto& b) { return a.second > b.second; });
    } else {
      summary.other.emplace_back(key, value.is_string() ? value.get<std::string>() : dumped(value, -1));
    }
  }
  return summary;
}

std::vector<TimelineEvent> read_timeline(const std::string& path, std::string& of) {
  const std::string text = read_text(path);
  const auto list = parse<json>(text, path);
  if (!list.is_array()) base::fail("{}:1: is {}, needs a list of stages", path, list.type_name());
  std::vector<TimelineEvent> events;
  for (const json& entry : list) {
    const std::string where = fmt::format("{}: stage {}", path, events.size());
    if (!entry.is_object()) base::fail("{}: is {}, needs an object", where, entry.type_name());
    const auto text_at = [&](const char* key) -> std::string {
      const auto it = entry.find(key);
      if (it == entry.end()) base::fail("{}: has no \"{}\"", where, key);
      if (it->is_number_integer()) return it->dump();
      if (!it->is_string()) base::fail("{}: \"{}\" is {}, needs a text", where, key, it->type_name());
      return it->get<std::string>();
    };
    const auto number_at = [&](const char* key, double lowest) {
      const auto it = entry.find(key);
      if (it == entry.end()) base::fail("{}: has no \"{}\"", where, key);
      const double value = number_from_json(*it, where, key);
      if (!std::isfinite(value) || value < lowest || value > 1e15)
        base::fail("{}: \"{}\" is {}, needs a time in microseconds", where, key, value);
      return value;
    };
    if (events.empty() && entry.contains("of")) of = text_at("of");
    events.push_back({text_at("name"), text_at("lane"), text_at("category"), number_at("start_us", -1e15),
                      number_at("dur_us", 0.0)});
  }
  return events;
}

void add_record(RunData& run, const StepRecord& record) {
  const double step = static_cast<double>(record.step);
  const auto add_known = [&](Curve& curve, double value) {
    if (!std::isnan(value)) curve.push_back({step, value});
  };
  RunCurves& curves = run.curves;
  curves.loss.push_back({step, record.loss});
  curves.grad_norm.push_back({step, record.grad_norm});
  add_known(curves.lr, record.lr);
  add_known(curves.tokens_per_s, record.tokens_per_s);
  add_known(curves.model_tflops, record.model_tflops);
  add_known(curves.hardware_tflops, record.hardware_tflops);
  for (const auto& [name, value] : record.aux) curves.aux[name].push_back({step, value});
  if (record.eval) {
    curves.eval_loss.push_back({step, record.eval->loss});
    add_known(curves.eval_bits_per_byte, record.eval->bits_per_byte);
  }
  for (const RouterHealth& layer : record.health)
    curves.max_over_mean[layer.layer].push_back({step, layer.max_over_mean});
  for (const CodeHealth& row : record.codes)
    curves.flushed[row.module + ", " + row.side].push_back({step, 100 * row.share(row.flushed)});
  if (!record.codes.empty()) {
    run.codes = record.codes;
    run.codes_step = record.step;
  }
  if (!record.health.empty()) {
    run.health = record.health;
    run.health_step = record.step;
  }
  if (std::isfinite(record.step_seconds) && std::isfinite(record.tokens_per_s)) {
    run.step_seconds += record.step_seconds;
    run.step_tokens += record.tokens_per_s * record.step_seconds;
  }
  run.last = record;
}

// A summary is written when a process ends: of a run that went on since, the log knows better.
void bring_up_to_date(RunData& run) {
  if (!run.summary || !run.last) return;
  RunSummary& summary = *run.summary;
  const std::optional<double> steps = summary.number("steps");
  if (!steps || static_cast<double>(run.last->step) <= *steps) return;
  summary.numbers["steps"] = static_cast<double>(run.last->step);
  summary.numbers["tokens"] = static_cast<double>(run.last->tokens);
  summary.numbers["final_loss"] = run.last->loss;
  if (!std::isnan(run.last->wall_seconds)) summary.numbers["wall_seconds"] = run.last->wall_seconds;
  if (run.step_seconds > 0) summary.numbers["tokens_per_s"] = run.step_tokens / run.step_seconds;
  for (const char* former : {"state_sha256", "sample"}) summary.texts.erase(former);
  for (const char* former : {"validation_loss", "validation_tokens", "validation_bits_per_byte",
                             "model_tflops", "hardware_tflops"})
    summary.numbers.erase(former);
}

}  // namespace

std::optional<double> RunSummary::number(const std::string& key) const {
  const auto it = numbers.find(key);
  return it == numbers.end() ? std::nullopt : std::optional(it->second);
}

std::string RunSummary::text(const std::string& key) const {
  const auto it = texts.find(key);
  return it == texts.end() ? "" : it->second;
}

RunData read_run(const std::string& folder) {
  namespace fs = std::filesystem;
  if (!fs::is_directory(folder)) base::fail("{} is no folder; a report needs the folder of a run", folder);
  const std::string metrics = (fs::path(folder) / "metrics.jsonl").string();
  const std::string summary = (fs::path(folder) / "summary.json").string();
  const std::string timeline = (fs::path(folder) / "timeline.json").string();
  RunData run;
  run.folder = folder;
  if (fs::exists(summary)) run.summary = read_summary(summary);
  if (fs::exists(timeline)) run.timeline = read_timeline(timeline, run.timeline_of);
  if (fs::exists(metrics)) {
    run.has_metrics = true;
    const JsonlTail tail =
        for_each_good_record(metrics, [&](const StepRecord& record) { add_record(run, record); });
    run.torn_log = tail.torn;
    run.log_faults = tail.faults;
    run.num_records = tail.num_records;
  }
  bring_up_to_date(run);
  if (!run.summary && !run.timeline && !run.has_metrics)
    base::fail("{} holds no metrics.jsonl, summary.json or timeline.json: not the folder of a run", folder);
  return run;
}

}  // namespace pleat::report
