#include "report/html/experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "report/format.h"
#include "report/html/heat_map.h"
#include "report/html/markup.h"

namespace pleat::report::html {

namespace {

constexpr size_t kStripColumns = 96, kLayersAtOnce = 16, kWorstLayers = 8;

std::string load_map(const RunData& run) {
  size_t num_experts = 0;
  for (const RouterHealth& layer : run.health) num_experts = std::max(num_experts, layer.load.size());
  if (num_experts == 0)
    return "<p class=\"missing\">The log holds router health but no expert counts (\"load\").</p>";
  HeatMap map;
  map.title = "Expert load";
  map.note = fmt::format("Assignments per expert over the mean of its layer, at step {}. 1 is balanced.",
                         run.health_step);
  map.col_title = "expert";
  map.legend_title = "load / mean";
  map.legend = {0, 0.5, 1, 2, 4};
  map.place = place_of_ratio;
  map.print_values = true;
  for (size_t expert = 0; expert < num_experts; ++expert) map.col_labels.push_back(fmt::format("{}", expert));
  for (const RouterHealth& layer : run.health) {
    map.row_labels.push_back(fmt::format("layer {}", layer.layer));
    double total = 0;
    for (const int64_t count : layer.load) total += static_cast<double>(count);
    const double mean = layer.load.empty() ? 0 : total / static_cast<double>(layer.load.size());
    for (size_t expert = 0; expert < num_experts; ++expert) {
      const bool exists = expert < layer.load.size();
      const double count = exists ? static_cast<double>(layer.load[expert]) : 0;
      const double ratio = mean > 0 ? count / mean : 0;
      map.values.push_back(exists ? ratio : kUnknown);
      map.marked.push_back(exists && count == 0);
      map.hints.push_back(fmt::format("layer {}, expert {}\n{:.0f} assignments, {:.2f}x the mean",
                                      layer.layer, expert, count, ratio));
    }
  }
  return heat_map(map);
}

// Each cell is the largest value of its stretch of steps: a short collapse must not be averaged away.
std::string peak_strip(const RunData& run) {
  double first = INFINITY, last = -INFINITY;
  size_t most_points = 0;
  for (const auto& [layer, curve] : run.curves.max_over_mean) {
    first = std::min(first, curve.front().x);
    last = std::max(last, curve.back().x);
    most_points = std::max(most_points, curve.size());
  }
  const double span = last - first;
  if (most_points < 2 || !(span > 0)) return "";
  const size_t columns = std::min(most_points, kStripColumns);
  const auto column_of = [&](double step) {
    return std::min(columns - 1, static_cast<size_t>((step - first) / span * static_cast<double>(columns)));
  };
  HeatMap map;
  map.title = "Busiest expert over the run";
  map.note = "The largest load / mean of each layer, over all steps of the stretch a cell stands for.";
  map.col_title = "step";
  map.legend_title = "max / mean";
  map.legend = {1, 1.5, 2, 4, 8};
  map.place = place_of_peak;
  for (size_t c = 0; c < columns; ++c)
    map.col_labels.push_back(
        fmt::format("{:.0f}", first + span * (static_cast<double>(c) + 0.5) / static_cast<double>(columns)));
  for (const auto& [layer, curve] : run.curves.max_over_mean) {
    map.row_labels.push_back(fmt::format("layer {}", layer));
    std::vector<Point> worst(columns, Point{0, kUnknown});
    for (const Point& point : curve) {
      Point& cell = worst[column_of(point.x)];
      if (!(point.y <= cell.y)) cell = point;
    }
    for (const Point& cell : worst) {
      map.values.push_back(cell.y);
      map.hints.push_back(fmt::format("layer {}, step {:.0f}\n{:.2f}x the mean", layer, cell.x, cell.y));
    }
  }
  return heat_map(map);
}

std::string number_cell(double value, int decimals) {
  return fmt::format("<td class=\"n\">{:.{}f}</td>", value, decimals);
}

std::string health_table(std::span<const RouterHealth> layers) {
  std::string out =
      "<div class=\"scroll\"><table><thead><tr><th>Layer</th><th>Verdict</th><th class=\"n\">max / mean</th>"
      "<th class=\"n\">min / mean</th><th class=\"n\">Entropy</th><th class=\"n\">Variation</th>"
      "<th class=\"n\">Dead</th><th class=\"n\">Dropped</th><th class=\"n\">Logit max</th>"
      "<th class=\"n\">Logit rms</th><th class=\"n\">Bias range</th></tr></thead><tbody>";
  for (const RouterHealth& layer : layers) {
    const std::string_view word = name_of(balance_of(layer));
    out += fmt::format("<tr><td>{}</td><td><span class=\"pill {}\" title=\"{}\">{}</span></td>", layer.layer,
                       word, escape(meaning_of(balance_of(layer))), word);
    out += number_cell(layer.max_over_mean, 2) + number_cell(layer.min_over_mean, 2) +
           number_cell(layer.entropy, 3) + number_cell(layer.cv, 2);
    out += fmt::format("<td class=\"n\">{}</td><td class=\"n\">{:.2f} %</td>", layer.dead,
                       100 * layer.dropped_share);
    out += number_cell(layer.logit_max, 2) + number_cell(layer.logit_rms, 2);
    out += layer.bias_min == 0 && layer.bias_max == 0
               ? "<td class=\"n\">none</td></tr>"
               : fmt::format("<td class=\"n\">{} … {}</td></tr>", format_significant(layer.bias_min, 3),
                             format_significant(layer.bias_max, 3));
  }
  return out + "</tbody></table></div>";
}

// A deep model's table would bury the rest of the page: its worst layers first, all of them on request.
std::string health_tables(const RunData& run) {
  if (run.health.size() <= kLayersAtOnce) return health_table(run.health);
  std::vector<RouterHealth> worst = run.health;
  std::stable_sort(worst.begin(), worst.end(), [](const RouterHealth& a, const RouterHealth& b) {
    return std::pair(balance_of(a), a.max_over_mean) > std::pair(balance_of(b), b.max_over_mean);
  });
  worst.resize(kWorstLayers);
  return fmt::format("<h3>The {} worst layers</h3>{}<details><summary>All {} layers</summary>{}</details>",
                     kWorstLayers, health_table(worst), run.health.size(), health_table(run.health));
}

}  // namespace

std::string experts_section(const RunData& run) {
  if (run.health.empty())
    return "<p class=\"missing\">metrics.jsonl holds no router health. A model with MoE layers logs it by "
           "default; a dense model has none.</p>";
  const RouterVerdict verdict = router_verdict(run.health);
  return fmt::format("<p class=\"note\"><span class=\"pill {}\">{}</span> {} (step {}). {}: {}.</p>",
                     escape(verdict.word), escape(verdict.word), escape(verdict.text), run.health_step,
                     escape(verdict.word), escape(verdict.meaning)) +
         load_map(run) + peak_strip(run) + health_tables(run);
}

}  // namespace pleat::report::html
