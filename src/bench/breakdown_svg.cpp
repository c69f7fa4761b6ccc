#include "bench/breakdown_svg.h"

#include <algorithm>

#include "base/error.h"
#include "report/html/markup.h"

namespace pleat::bench {
namespace {

using report::html::escape;
using report::html::px;

constexpr double kLeft = 210, kBars = 520, kRight = 190, kTop = 56, kRow = 24, kBar = 15;

struct Bar {
  std::string name;
  double seconds = 0, floor = 0;
};

std::vector<Bar> bars_of(const std::vector<OperationTime>& times) {
  double total = 0;
  for (const OperationTime& t : times) total += t.seconds;
  std::vector<Bar> bars;
  Bar rest{"all others", 0, 0};
  for (const OperationTime& t : times) {
    if (t.seconds < 0.01 * total)
      rest.seconds += t.seconds, rest.floor += t.floor_seconds;
    else
      bars.push_back({t.name, t.seconds, t.floor_seconds});
  }
  if (rest.seconds > 0) bars.push_back(rest);
  return bars;
}

std::string text(double x, double y, const char* anchor, const std::string& what) {
  return fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"{}\">{}</text>\n", px(x), px(y), anchor,
                     escape(what));
}

std::string rectangle(double y, double width, double height, const char* fill) {
  return fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>\n", px(kLeft), px(y),
                     px(width), px(height), fill);
}

}  // namespace

std::string breakdown_svg(const std::vector<OperationTime>& times, const std::string& title) {
  PLEAT_CHECK(!times.empty(), "a picture of no operations");
  const std::vector<Bar> bars = bars_of(times);
  double longest = 0, seconds = 0, floor = 0;
  for (const Bar& b : bars) {
    longest = std::max({longest, b.seconds, b.floor});
    seconds += b.seconds, floor += b.floor;
  }
  const double width = kLeft + kBars + kRight, height = kTop + kRow * static_cast<double>(bars.size()) + 12;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      px(width), px(height));
  out += text(12, 20, "start", title);
  out += text(12, 40, "start",
              fmt::format("bar: measured, {:.2f} ms in all; dark: at the ceilings, {:.2f} ms", seconds * 1e3,
                          floor * 1e3));
  double y = kTop;
  for (const Bar& b : bars) {
    const double scale = longest > 0 ? kBars / longest : 0;
    out += text(kLeft - 8, y + 12, "end", b.name);
    out += rectangle(y, b.seconds * scale, kBar, "#9cc3e6");
    out += rectangle(y + 4, b.floor * scale, kBar - 8, "#1f4e79");
    std::string label = fmt::format("{:.2f} ms", b.seconds * 1e3);
    if (b.floor > 0)
      label += fmt::format(", floor {:.2f} ({:.0f} %)", b.floor * 1e3, 100 * b.floor / b.seconds);
    out += text(kLeft + kBars + 8, y + 12, "start", label);
    y += kRow;
  }
  return out + "</svg>\n";
}

}  // namespace pleat::bench
