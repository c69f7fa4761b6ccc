#include "report/html/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "report/html/markup.h"

namespace pleat::report::html {

namespace {

struct Rgb {
  double r, g, b;
};
constexpr std::array<Rgb, 6> kStops = {
    {{16, 42, 92}, {46, 84, 130}, {98, 120, 144}, {152, 152, 136}, {208, 190, 106}, {255, 228, 92}}};

Rgb ramp(double place) {
  const double at = std::clamp(std::isnan(place) ? 0.0 : place, 0.0, 1.0) * (kStops.size() - 1);
  const size_t lower = std::min(static_cast<size_t>(at), kStops.size() - 2);
  const double part = at - static_cast<double>(lower);
  const Rgb &a = kStops[lower], &b = kStops[lower + 1];
  return {a.r + part * (b.r - a.r), a.g + part * (b.g - a.g), a.b + part * (b.b - a.b)};
}

double row_height(size_t rows) { return rows <= 12 ? 28 : rows <= 32 ? 20 : rows <= 64 ? 13 : 9; }

std::string cells(const HeatMap& map, size_t rows, size_t cols, double height) {
  const bool print = map.print_values && cols <= 16 && height >= 20;
  // Past this many cells the hints would be most of the page.
  const bool hints = !map.hints.empty() && rows * cols <= 16384;
  std::string out = fmt::format(
      "<svg class=\"cells\" width=\"100%\" height=\"{}\" role=\"img\" aria-label=\"{}\" "
      "data-hover=\"hint\">",
      px(height * static_cast<double>(rows)), escape(map.title));
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < cols; ++c) {
      const size_t cell = r * cols + c;
      const double value = map.values[cell], place = map.place(value);
      if (std::isnan(value)) continue;
      const std::string left = percent(static_cast<double>(c) / static_cast<double>(cols));
      const double top = static_cast<double>(r) * height;
      out += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"", left, px(top),
                         percent(1.0 / static_cast<double>(cols)), px(height), ramp_colour(place));
      out += hints ? fmt::format("><title>{}</title></rect>", escape(map.hints[cell])) : "/>";
      const std::string middle = percent((static_cast<double>(c) + 0.5) / static_cast<double>(cols));
      if (!map.marked.empty() && map.marked[cell])
        out += fmt::format("<text class=\"mark\" x=\"{}\" y=\"{}\" style=\"font-size:{}px\">×</text>", middle,
                           px(top + height / 2), px(std::min(17.0, height)));
      else if (print)
        out += fmt::format("<text class=\"{}\" x=\"{}\" y=\"{}\">{:.2f}</text>",
                           ramp_is_dark(place) ? "on-dark" : "on-light", middle, px(top + height / 2), value);
    }
  }
  return out + "</svg>";
}

std::string row_names(const HeatMap& map, size_t rows, double height) {
  const size_t every = height >= 13 ? 1 : 2;
  std::string out = fmt::format("<div class=\"rows\" style=\"line-height:{0}px;font-size:{1}px\">",
                                px(height), px(std::min(12.0, height)));
  for (size_t r = 0; r < rows; ++r)
    out += fmt::format("<div style=\"height:{}px\">{}</div>", px(height),
                       r % every == 0 ? escape(map.row_labels[r]) : "");
  return out + "</div>";
}

std::string col_names(const HeatMap& map, size_t cols) {
  const size_t every = (cols + 15) / 16;
  std::string out = "<svg class=\"cols\" width=\"100%\" height=\"18\">";
  for (size_t c = 0; c < cols; c += every)
    out += fmt::format("<text x=\"{}\" y=\"13\">{}</text>",
                       percent((static_cast<double>(c) + 0.5) / static_cast<double>(cols)),
                       escape(map.col_labels[c]));
  return out + "</svg>";
}

std::string legend(const HeatMap& map) {
  constexpr int kSteps = 48;
  constexpr double kWidth = 240;
  std::string out = fmt::format("<div class=\"ramp\"><span>{}</span><svg width=\"270\" height=\"30\">",
                                escape(map.legend_title));
  for (int i = 0; i < kSteps; ++i)
    out +=
        fmt::format("<rect x=\"{}\" y=\"0\" width=\"{}\" height=\"11\" fill=\"{}\"/>",
                    px(12 + kWidth * i / kSteps), px(kWidth / kSteps + 0.5), ramp_colour((i + 0.5) / kSteps));
  for (const double value : map.legend)
    out += fmt::format("<text x=\"{}\" y=\"25\">{:g}</text>", px(12 + kWidth * map.place(value)), value);
  out += "</svg>";
  if (std::find(map.marked.begin(), map.marked.end(), true) != map.marked.end())
    out += "<span><b class=\"mark\">×</b> no token at all</span>";
  return out + "</div>";
}

}  // namespace

std::string ramp_colour(double place) {
  const Rgb c = ramp(place);
  return fmt::format("#{:02x}{:02x}{:02x}", static_cast<int>(std::lround(c.r)),
                     static_cast<int>(std::lround(c.g)), static_cast<int>(std::lround(c.b)));
}

bool ramp_is_dark(double place) {
  const Rgb c = ramp(place);
  return 0.299 * c.r + 0.587 * c.g + 0.114 * c.b < 118;
}

double place_of_ratio(double ratio) { return ratio * ratio / (1 + ratio * ratio); }
double place_of_peak(double ratio) { return ratio <= 1 ? 0 : 1 - std::pow(ratio, -1.5); }

std::string heat_map(const HeatMap& map) {
  const size_t rows = map.row_labels.size(), cols = map.col_labels.size();
  PLEAT_CHECK(map.values.size() == rows * cols && map.place != nullptr, "heat map of {} x {}", rows, cols);
  PLEAT_CHECK(map.marked.empty() || map.marked.size() == rows * cols, "{} marks", map.marked.size());
  PLEAT_CHECK(map.hints.empty() || map.hints.size() == rows * cols, "{} hints", map.hints.size());
  const double height = row_height(rows);
  return fmt::format(
      "<figure class=\"heat\"><figcaption><h3>{}</h3></figcaption><p class=\"note\">{}</p><div "
      "class=\"heatgrid\">{}{}"
      "<div></div>{}<div></div><div class=\"axis-title\">{}</div></div>{}</figure>",
      escape(map.title), escape(map.note), row_names(map, rows, height), cells(map, rows, cols, height),
      col_names(map, cols), escape(map.col_title), legend(map));
}

}  // namespace pleat::report::html
