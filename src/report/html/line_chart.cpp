#include "report/html/line_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "report/format.h"
#include "report/html/markup.h"

namespace pleat::report::html {

namespace {

constexpr double kWidth = 640, kHeight = 270, kLeft = 58, kRight = 14, kTop = 12, kBottom = 44;
constexpr double kPlotWidth = kWidth - kLeft - kRight, kPlotHeight = kHeight - kTop - kBottom;
constexpr size_t kColumns = 280, kHoverPoints = 400;

// Near the ends of the range of double the arithmetic of an axis would overflow: as good as infinite.
bool drawable(double y, Scale scale) {
  return std::fabs(y) <= 1e300 && (scale == Scale::Linear || y >= 1e-300);
}

struct Frame {
  Axis x, y;
  double across(double value) const { return kLeft + kPlotWidth * x.place(value); }
  double down(double value) const { return kTop + kPlotHeight * (1 - y.place(value)); }
};

// Nothing when no point can be drawn.
std::vector<Frame> frame_of(const LineChart& chart) {
  double x_low = std::numeric_limits<double>::infinity(), x_high = -x_low, y_low = x_low, y_high = -x_low;
  for (const Series& series : chart.series)
    for (const Point& point : series.points) {
      x_low = std::min(x_low, point.x);
      x_high = std::max(x_high, point.x);
      if (!drawable(point.y, chart.y_scale)) continue;
      y_low = std::min(y_low, point.y);
      y_high = std::max(y_high, point.y);
    }
  if (!(y_low <= y_high)) return {};
  if (chart.y_from_zero && chart.y_scale == Scale::Linear)
    y_low = std::min(0.0, y_low), y_high = std::max(0.0, y_high);
  return {Frame{Axis(x_low, x_high, Scale::Linear, 6, false), Axis(y_low, y_high, chart.y_scale, 5, true)}};
}

std::string grid(const LineChart& chart, const Frame& frame) {
  std::string out = "<g class=\"grid\">";
  for (const double tick : frame.y.ticks())
    out += fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{}\" y2=\"{}\"/>", px(kLeft), px(kWidth - kRight),
                       px(frame.down(tick)), px(frame.down(tick)));
  out += "</g><g class=\"tick\">";
  for (const double tick : frame.y.ticks())
    out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>", px(kLeft - 8),
                       px(frame.down(tick) + 4), escape(frame.y.label(tick)));
  for (const double tick : frame.x.ticks())
    out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>", px(frame.across(tick)),
                       px(kHeight - kBottom + 18), escape(frame.x.label(tick)));
  out += fmt::format("</g><line class=\"axis\" x1=\"{0}\" x2=\"{1}\" y1=\"{2}\" y2=\"{2}\"/>", px(kLeft),
                     px(kWidth - kRight), px(kHeight - kBottom));
  out += fmt::format("<text class=\"label\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
                     px(kWidth - kRight), px(kHeight - 6), escape(chart.x_label));
  out += fmt::format("<text class=\"label\" x=\"{}\" y=\"{}\">{}</text>", px(kLeft), px(kHeight - 6),
                     escape(chart.y_label));
  return out;
}

std::string path_of(const Curve& points, const Frame& frame, Scale scale) {
  std::string out;
  bool pen_down = false;
  for (const Point& point : points) {
    if (!drawable(point.y, scale)) {
      pen_down = false;
      continue;
    }
    out += fmt::format("{}{} {}", pen_down ? "L" : "M", px(frame.across(point.x)), px(frame.down(point.y)));
    pen_down = true;
  }
  return out;
}

std::string draw(const Series& series, const Frame& frame, Scale scale) {
  std::string out;
  const auto thinned = thin(series.points, kColumns);
  const bool dots = series.look == Series::Look::Dots;
  out += fmt::format("<path class=\"{}\" d=\"{}\" style=\"stroke:{}\"/>",
                     series.look == Series::Look::Faint ? "line faint" : "line",
                     path_of(thinned, frame, scale), series.colour);
  size_t num_drawable = 0;
  for (const Point& point : series.points) num_drawable += drawable(point.y, scale);
  if ((dots && num_drawable <= 60) || num_drawable == 1)
    for (const Point& point : series.points)
      if (drawable(point.y, scale))
        out += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"3.2\" style=\"fill:{}\"/>",
                           px(frame.across(point.x)), px(frame.down(point.y)), series.colour);
  double last = -10;
  for (const Point& point : series.points) {
    if (drawable(point.y, scale)) continue;
    const double at = frame.across(point.x);
    if (at - last < 2) continue;
    last = at;
    out += fmt::format("<path class=\"bad\" d=\"M{0} {1}l4 8h-8z\"><title>{2} is {3} at {4}</title></path>",
                       px(at), px(kHeight - kBottom - 8), escape(series.name), point.y, point.x);
  }
  return out;
}

// "x y text|x y text|..." in viewBox units, for the hover script only.
std::string hover_data(const LineChart& chart, const Series& series, const Frame& frame) {
  std::string out;
  const size_t stride = std::max<size_t>(1, (series.points.size() + kHoverPoints - 1) / kHoverPoints);
  for (size_t i = 0; i < series.points.size(); i += stride) {
    const Point& point = series.points[i];
    if (!drawable(point.y, chart.y_scale)) continue;
    out +=
        fmt::format("{}{} {} {} {}", out.empty() ? "" : "|", px(frame.across(point.x)),
                    px(frame.down(point.y)), fmt::format("{:.0f}", point.x), format_significant(point.y, 5));
  }
  return out;
}

}  // namespace

std::string line_chart(const LineChart& chart) {
  std::string out = fmt::format("<figure class=\"chart\"><figcaption><h3>{}</h3>", escape(chart.title));
  if (chart.series.size() > 1) {
    out += "<span class=\"legend\">";
    for (const Series& series : chart.series)
      out +=
          fmt::format("<span class=\"key{}\"><i style=\"background:{}\"></i>{}</span>",
                      series.look == Series::Look::Faint ? " faint" : "", series.colour, escape(series.name));
    out += "</span>";
  }
  out += "</figcaption>";
  const auto frames = frame_of(chart);
  if (frames.empty()) return out + "<p class=\"missing\">No finite value was logged.</p></figure>";
  const Frame& frame = frames.front();
  out += fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\" data-hover=\"lines\">",
                     px(kWidth), px(kHeight), escape(chart.title));
  out += grid(chart, frame);
  for (const Series& series : chart.series) out += draw(series, frame, chart.y_scale);
  out += "<g class=\"hover\">";
  for (const Series& series : chart.series)
    out += fmt::format("<g data-name=\"{}\" data-points=\"{}\"><circle r=\"3.6\" style=\"fill:{}\"/></g>",
                       escape(series.name), escape(hover_data(chart, series, frame)), series.colour);
  out += fmt::format("<line class=\"cursor\" y1=\"{}\" y2=\"{}\"/></g></svg></figure>", px(kTop),
                     px(kHeight - kBottom));
  return out;
}

}  // namespace pleat::report::html
