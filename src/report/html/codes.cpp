#include "report/html/codes.h"

#include <fmt/format.h>

#include "report/format.h"
#include "report/html/line_chart.h"
#include "report/html/markup.h"

namespace pleat::report::html {

namespace {

std::string flushed_chart(const RunData& run) {
  LineChart chart{"Numbers that became 0", "step", "percent of those that are not 0", {},
                  Scale::Linear,           true};
  for (const auto& [name, curve] : run.curves.flushed)
    chart.series.push_back({shorten(name, 40), fmt::format("var(--c{})", chart.series.size() % 8 + 1), curve,
                            Series::Look::Line});
  return line_chart(chart);
}

std::string code_table(const RunData& run) {
  std::string out =
      "<div class=\"scroll\"><table><thead><tr><th>Products</th><th>Side</th><th>Verdict</th>"
      "<th class=\"n\">Numbers</th><th class=\"n\">Flushed</th><th class=\"n\">Saturated</th>"
      "<th class=\"n\">NaN</th><th class=\"n\">Largest</th></tr></thead><tbody>";
  for (const CodeHealth& row : run.codes) {
    const CodeState state = state_of(row);
    out += fmt::format(
        "<tr><td>{}</td><td>{}</td><td><span class=\"pill {}\" title=\"{}\">{}</span></td>"
        "<td class=\"n\">{}</td><td class=\"n\">{:.3g} %</td><td class=\"n\">{}</td><td class=\"n\">{}</td>"
        "<td class=\"n\">{}</td></tr>",
        escape(shorten(row.module, 40)), escape(shorten(row.side, 40)), name_of(state),
        escape(meaning_of(state)), name_of(state), format_count(static_cast<double>(row.numbers)),
        100 * row.share(row.flushed), row.saturated, row.nan, format_significant(row.largest, 3));
  }
  return out + "</tbody></table></div>";
}

}  // namespace

std::string codes_section(const RunData& run) {
  if (run.codes.empty()) return "";
  const CodeVerdict verdict = code_verdict(run.codes);
  return fmt::format("<p class=\"note\"><span class=\"pill {}\">{}</span> {} (step {}). {}: {}.</p>",
                     escape(verdict.word), escape(verdict.word), escape(verdict.text), run.codes_step,
                     escape(verdict.word), escape(meaning_of(verdict.state))) +
         "<div class=\"charts\">" + flushed_chart(run) + "</div>" + code_table(run);
}

}  // namespace pleat::report::html
