#include "report/html/page.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/hash.h"
#include "report/format.h"
#include "report/html/codes.h"
#include "report/html/experts.h"
#include "report/html/line_chart.h"
#include "report/html/markup.h"
#include "report/html/memory.h"
#include "report/html/style.h"
#include "report/html/timeline.h"

namespace pleat::report::html {

namespace {

std::string section(const std::string& title, const std::string& body) {
  return fmt::format("<section><h2>{}</h2>{}</section>", escape(title), body);
}

std::string missing(const std::string& why) {
  return fmt::format("<p class=\"missing\">{}</p>", escape(why));
}

std::string card(const std::string& what, const std::string& value, const std::string& below) {
  return fmt::format("<div class=\"card\"><small>{}</small><b>{}</b><span>{}</span></div>", escape(what),
                     escape(value), escape(below));
}

// Figures from the summary, or, for a run that has not ended, from its last log line.
class Figures {
 public:
  explicit Figures(const RunData& run) : run_(run) {}
  std::optional<double> get(const std::string& key, double StepRecord::*field = nullptr) const {
    if (run_.summary)
      if (const auto value = run_.summary->number(key)) return value;
    if (field != nullptr && run_.last && !std::isnan((*run_.last).*field)) return (*run_.last).*field;
    return std::nullopt;
  }

 private:
  const RunData& run_;
};

std::string cards(const RunData& run) {
  const Figures figures(run);
  std::string out = "<div class=\"cards\">";
  if (const auto loss = figures.get("final_loss", &StepRecord::loss)) {
    const auto steps = figures.get("steps");
    const double last_step = steps ? *steps : run.last ? static_cast<double>(run.last->step) : kUnknown;
    out += card(run.summary ? "Final loss" : "Loss so far", format_significant(*loss, 5),
                std::isnan(last_step) ? "" : fmt::format("after {:.0f} steps", last_step));
  }
  auto best = figures.get("best_eval_loss");
  if (!best)
    for (const Point& point : run.curves.eval_loss)
      if (!best || point.y < *best) best = point.y;
  if (best) out += card("Best evaluation loss", format_significant(*best, 5), "train.eval_batches each time");
  if (const auto loss = figures.get("validation_loss"))
    out += card("Validation loss", format_significant(*loss, 5), "all of it, at the end");
  if (const auto bits = figures.get("validation_bits_per_byte")) {
    const auto bigram = figures.get("bigram_bits_per_byte");
    out += card("Bits per byte", format_significant(*bits, 4),
                bigram ? fmt::format("all of it; bigram {} ({:+.0f} %)", format_significant(*bigram, 4),
                                     100 * (*bits / *bigram - 1))
                       : "all of the validation");
  } else if (!run.curves.eval_bits_per_byte.empty()) {
    out += card("Bits per byte", format_significant(run.curves.eval_bits_per_byte.back().y, 4),
                "last evaluation");
  }
  auto tokens = figures.get("tokens");
  if (!tokens && run.last) tokens = static_cast<double>(run.last->tokens);
  if (tokens) out += card("Tokens trained", format_count(*tokens), "");
  if (const auto rate = figures.get("tokens_per_s", &StepRecord::tokens_per_s))
    out += card("Throughput", format_token_rate(*rate), "tokens per second");
  if (const auto rate = figures.get("model_tflops", &StepRecord::model_tflops))
    out += card("Model TFLOP/s", format_significant(*rate, 3), "active experts, causal");
  if (const auto rate = figures.get("hardware_tflops", &StepRecord::hardware_tflops)) {
    const auto peak = figures.get("gemm_peak_tflops");
    out += card("Hardware TFLOP/s", format_significant(*rate, 3),
                peak && *peak > 0 ? fmt::format("{:.0f} % of GEMM rate", 100 * *rate / *peak)
                                  : "with recompute, padding");
  }
  if (const auto peak = figures.get("measured_peak_bytes")) {
    const auto planned = figures.get("planned_peak_bytes");
    out +=
        card("Peak memory", format_bytes(*peak), planned ? "planned " + format_bytes(*planned) : "measured");
  }
  if (!run.health.empty()) {
    const RouterVerdict verdict = router_verdict(run.health);
    double busiest = 0;
    int64_t dead = 0;
    for (const RouterHealth& layer : run.health) {
      busiest = std::max(busiest, layer.max_over_mean);
      dead += layer.dead;
    }
    out += card("Experts", verdict.word, fmt::format("busiest {:.1f}x, {} dead", busiest, dead));
  }
  if (const auto wall = figures.get("wall_seconds")) {
    const auto refused = figures.get("refused_steps");
    out += card("Wall time", format_duration(*wall),
                refused ? fmt::format("{:.0f} {} refused", *refused, *refused == 1 ? "step" : "steps") : "");
  }
  return out + "</div>";
}

std::string learning(const RunData& run) {
  if (!run.has_metrics)
    return missing(
        "metrics.jsonl is not in the run folder. `pleat train` writes one line per step; give the folder it "
        "wrote to.");
  if (run.num_records == 0) return missing("metrics.jsonl is empty: no step has ended yet.");
  const RunCurves& curves = run.curves;
  std::string out = "<div class=\"charts\">";
  LineChart loss{"Loss", "step", "nats per token", {}, Scale::Linear, false};
  const bool noisy = curves.loss.size() >= 30;
  loss.series.push_back(
      {"training", "var(--c1)", curves.loss, noisy ? Series::Look::Faint : Series::Look::Line});
  if (noisy)
    loss.series.push_back({"training, smoothed", "var(--c1)",
                           smooth(curves.loss, std::clamp<size_t>(curves.loss.size() / 40, 5, 200)),
                           Series::Look::Line});
  if (!curves.eval_loss.empty())
    loss.series.push_back({"evaluation", "var(--c2)", curves.eval_loss, Series::Look::Dots});
  out += line_chart(loss);
  out += line_chart({"Learning rate",
                     "step",
                     "",
                     {{"learning rate", "var(--c3)", curves.lr, Series::Look::Line}},
                     Scale::Linear,
                     true});
  double low = INFINITY, high = 0;
  for (const Point& point : curves.grad_norm)
    if (std::isfinite(point.y) && point.y > 0) low = std::min(low, point.y), high = std::max(high, point.y);
  const bool wide_range = high > 30 * low;
  out += line_chart({wide_range ? "Gradient norm (logarithmic)" : "Gradient norm",
                     "step",
                     "before clipping",
                     {{"gradient norm", "var(--c4)", curves.grad_norm, Series::Look::Line}},
                     wide_range ? Scale::Log : Scale::Linear,
                     !wide_range});
  out += line_chart({"Throughput",
                     "step",
                     "tokens per second",
                     {{"tokens per second", "var(--c5)", curves.tokens_per_s, Series::Look::Line}},
                     Scale::Linear,
                     true});
  LineChart flops{"Arithmetic rate", "step", "TFLOP/s", {}, Scale::Linear, true};
  if (!curves.model_tflops.empty())
    flops.series.push_back({"model", "var(--c1)", curves.model_tflops, Series::Look::Line});
  if (!curves.hardware_tflops.empty())
    flops.series.push_back({"hardware", "var(--c2)", curves.hardware_tflops, Series::Look::Line});
  if (!flops.series.empty()) out += line_chart(flops);
  if (!curves.aux.empty()) {
    LineChart aux{"Auxiliary losses", "step", "as added to the loss", {}, Scale::Linear, true};
    for (const auto& [name, curve] : curves.aux)
      aux.series.push_back({shorten(name, 40), fmt::format("var(--c{})", aux.series.size() % 8 + 1), curve,
                            Series::Look::Line});
    out += line_chart(aux);
  }
  out += "</div>";
  for (const std::string& fault : run.log_faults)
    out += fmt::format("<p class=\"note\">A damaged line is left out: {}</p>", escape(shorten(fault, 300)));
  if (run.torn_log)
    out +=
        "<p class=\"note\">The last line of metrics.jsonl was cut off while it was written and is left "
        "out.</p>";
  return out;
}

// Of one of several ranks: the others are not drawn.
std::string whose(const std::string& of) {
  if (of.empty()) return "";
  return fmt::format(
      "<p class=\"note\">The step of {} alone. Waiting for other ranks counts as time of the exchange.</p>",
      escape(shorten(of, 100)));
}

std::string details(const RunData& run) {
  if (!run.summary) return "";
  std::string out;
  if (const std::string sha = run.summary->text("state_sha256"); !sha.empty())
    out += fmt::format("<p class=\"note\">SHA-256 of the whole state <code class=\"sha\">{}</code></p>",
                       escape(sha));
  if (!run.summary->other.empty()) {
    out += "<div class=\"scroll\"><table><tbody>";
    for (const auto& [key, value] : run.summary->other)
      out += fmt::format("<tr><td>{}</td><td><code>{}</code></td></tr>", escape(shorten(key, 60)),
                         escape(shorten(value, 400)));
    out += "</tbody></table></div>";
  }
  if (const std::string config = run.summary->text("config"); config.find('\n') != std::string::npos)
    out += fmt::format("<details><summary>Configuration</summary><pre>{}</pre></details>", escape(config));
  return out;
}

std::string script_hash() {
  const base::Sha256Digest digest = base::sha256(kScript);
  unsigned char text[64];
  const int length = EVP_EncodeBlock(text, reinterpret_cast<const unsigned char*>(digest.data()),
                                     static_cast<int>(digest.size()));
  return {reinterpret_cast<const char*>(text), static_cast<size_t>(length)};
}

std::string name_of(const RunData& run) {
  if (run.summary && !run.summary->text("run").empty()) return run.summary->text("run");
  const auto folder = std::filesystem::path(run.folder).lexically_normal();
  return folder.has_filename() ? folder.filename().string() : folder.parent_path().filename().string();
}

}  // namespace

std::string page(const RunData& run) {
  const std::string name = shorten(name_of(run), 120);
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/>";
  out += fmt::format(
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; script-src 'sha256-{}'\"/>",
      script_hash());
  out += fmt::format("<title>{} · Pleat report</title><style>{}</style></head><body><main>", escape(name),
                     kStyle);
  out += fmt::format("<header><h1>{}</h1>", escape(name));
  const std::string config = run.summary ? run.summary->text("config") : "";
  if (!config.empty() && config.find('\n') == std::string::npos)
    out += fmt::format("<p>{}</p>", escape(shorten(config, 300)));
  out += "</header>" + cards(run);
  if (!run.summary)
    out += section(
        "Summary",
        missing("summary.json is not in the run folder. It is written when a run ends; the figures above are "
                "those of the last logged step."));
  out += section("Learning", learning(run));
  out += section("Experts", experts_section(run));
  if (const std::string codes = codes_section(run); !codes.empty())
    out += section("Codes of few bits", codes);
  out += section(
      "Memory",
      run.summary
          ? memory_section(*run.summary)
          : missing("summary.json is not in the run folder; memory figures are written when a run ends."));
  if (!run.timeline)
    out += section("One step", missing("timeline.json is not in the run folder. It holds the measured stages "
                                       "of one step; train with the "
                                       "timeline switched on to get it."));
  else if (run.timeline->empty())
    out += section("One step", missing("timeline.json holds no stage."));
  else
    out += section("One step", whose(run.timeline_of) + timeline(*run.timeline));
  if (run.summary && !run.summary->text("sample").empty())
    out += section("Sample", fmt::format("<pre>{}</pre>", escape(run.summary->text("sample"))));
  if (const std::string rest = details(run); !rest.empty()) out += section("Details", rest);
  out += fmt::format(
      "<footer>{} logged steps. This page loads nothing from the "
      "network.</footer></main><script>{}</script></body></html>\n",
      run.num_records, kScript);
  return out;
}

}  // namespace pleat::report::html
