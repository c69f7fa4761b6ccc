#include "report/html/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/format.h"
#include "report/html/markup.h"
#include "report/html/style.h"

namespace pleat::report::html {

namespace {

struct Part {
  std::string name, colour;
  double bytes = 0.0;
};

std::string both_units(double bytes) { return fmt::format("{} ({:.0f} bytes)", format_bytes(bytes), bytes); }

// One labelled row: parts side by side on the common scale.
std::string row(const std::string& label, const std::vector<Part>& parts, double scale) {
  double total = 0, left = 0;
  for (const Part& part : parts) total += part.bytes;
  std::string out = fmt::format(
      "<div class=\"barrow\"><span>{}</span><svg width=\"100%\" height=\"26\" "
      "role=\"img\" aria-label=\"{}\" data-hover=\"hint\">",
      escape(label), escape(label));
  for (const Part& part : parts) {
    if (part.bytes <= 0) continue;
    out += fmt::format("<rect class=\"{}\" x=\"{}\" width=\"{}\" height=\"26\"><title>{}\n{}</title></rect>",
                       part.colour, percent(left / scale), percent(part.bytes / scale), escape(part.name),
                       both_units(part.bytes));
    left += part.bytes;
  }
  return out + fmt::format("</svg><b>{}</b></div>", format_bytes(total));
}

bool usable(const std::optional<double>& value) { return value && *value >= 0 && *value <= kMaxBytes; }

}  // namespace

std::string memory_section(const RunSummary& summary) {
  const auto planned = summary.number("planned_peak_bytes"), measured = summary.number("measured_peak_bytes");
  const auto outside = summary.number("outside_bytes");
  std::vector<Part> owners;
  double owned = 0;
  for (const auto& [owner, bytes] : summary.memory_by_owner) {
    owners.push_back({owner, colour_class(owners.size()), bytes});
    owned += bytes;
  }
  if (owners.empty() && !usable(planned) && !usable(measured))
    return "<p class=\"missing\">summary.json has no memory figures (planned_peak_bytes, "
           "measured_peak_bytes, "
           "memory_by_owner). They are written when a run ends.</p>";
  if (!owners.empty() && usable(planned) && *planned > owned)
    owners.push_back({"alignment and gaps", "c0", *planned - owned});

  double scale = 1;
  for (const auto& value : {planned, measured, outside, std::optional(owned)})
    if (usable(value)) scale = std::max(scale, *value);

  std::string out = "<div class=\"pair\"><div><div class=\"bars\">";
  if (!owners.empty()) out += row("by owner", owners, scale);
  if (usable(planned)) out += row("planned peak", {{"planned peak", "plain", *planned}}, scale);
  if (usable(measured)) out += row("measured peak", {{"measured peak", "plain", *measured}}, scale);
  if (usable(outside)) out += row("outside the arena", {{"outside the arena", "c0", *outside}}, scale);
  out += "</div>";
  if (usable(planned) && usable(measured) && *planned > 0)
    out += fmt::format(
        "<p class=\"note\">Measured is {:.4f} % of planned, {:.0f} bytes apart.{}</p>",
        100 * *measured / *planned, std::fabs(*planned - *measured),
        *measured > *planned ? " <strong class=\"warn\">The run used more than its plan.</strong>" : "");
  if (usable(planned) && owned > *planned)
    out +=
        "<p class=\"note\">The owners add up to more than the peak: not all of them live at the same "
        "time.</p>";
  out += "</div>";
  if (owners.empty()) return out + "</div>";

  const double total = std::max(owned, usable(planned) ? *planned : 0.0);
  out +=
      "<div class=\"scroll\"><table><thead><tr><th>Owner</th><th class=\"n\">Memory</th><th "
      "class=\"n\">Bytes</th>"
      "<th class=\"n\">Share</th></tr></thead><tbody>";
  for (const Part& part : owners)
    out += fmt::format(
        "<tr><td><i class=\"dot {}\"></i>{}</td><td class=\"n\">{}</td><td class=\"n\">{:.0f}</td>"
        "<td class=\"n\">{:.1f} %</td></tr>",
        part.colour, escape(shorten(part.name, 60)), format_bytes(part.bytes), part.bytes,
        total > 0 ? 100 * part.bytes / total : 0.0);
  return out + "</tbody></table></div></div>";
}

}  // namespace pleat::report::html
