#include "layout/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/error.h"

namespace pleat::layout {
namespace {

constexpr int kCellWidth = 62, kCellHeight = 46, kCellGap = 6;
constexpr int kFrame = 5;      // from a group's cells to its frame
constexpr int kGroupGap = 14;  // between tensor groups
constexpr int kStageGap = 46;  // room for the arrow between stages
constexpr int kMargin = 28, kTitle = 66, kStageTop = 34, kLegend = 40, kPanelGap = 22;
constexpr int kMostSwatches = 8;

// Colours that stay apart for most eyes; past them the hue goes on by the golden angle.
std::string colour(int64_t group, double depth) {
  static constexpr double kHues[] = {210, 28, 150, 325, 265, 50, 185, 5};
  const double hue = group < static_cast<int64_t>(std::size(kHues))
                         ? kHues[group]
                         : std::fmod(210 + 137.508 * static_cast<double>(group), 360);
  const double lightness = 0.87 - 0.27 * depth, saturation = 0.62;
  const double chroma = (1 - std::abs(2 * lightness - 1)) * saturation;
  const auto channel = [&](double shift) {
    const double k = std::fmod(shift + hue / 30, 12);
    const double x = lightness - chroma / 2 * std::max(-1.0, std::min({k - 3, 9 - k, 1.0}));
    return static_cast<int>(std::lround(255 * x));
  };
  return fmt::format("#{:02x}{:02x}{:02x}", channel(0), channel(8), channel(4));
}

double part(int64_t index, int64_t size) {
  return size > 1 ? static_cast<double>(index) / static_cast<double>(size - 1) : 0.35;
}

class Picture {
 public:
  explicit Picture(const Layout& l) : l_(l), s_(l.sizes()) {
    group_width_ = static_cast<int>(s_.tp) * (kCellWidth + kCellGap) - kCellGap;
    stage_width_ = static_cast<int>(s_.cp) * (group_width_ + kGroupGap + 2 * kFrame) - kGroupGap;
    row_height_ = kCellHeight + kGroupGap + 2 * kFrame;
    stage_height_ = static_cast<int>(l_.dp()) * row_height_ - kGroupGap;
    const int stages = static_cast<int>(s_.pp) * (stage_width_ + kStageGap) - kStageGap;
    width_ = std::max(stages + 2 * kMargin, 680);
    left_ = (width_ - stages) / 2;
    panel_height_ = kTitle + kStageTop + stage_height_ + kLegend;
  }

  std::string draw() {
    const int height = 2 * panel_height_ + kPanelGap + 2 * kMargin;
    out_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
        "font-family=\"DejaVu Sans, Verdana, sans-serif\">\n"
        "<rect width=\"{0}\" height=\"{1}\" rx=\"12\" fill=\"#ffffff\" stroke=\"#d7dbe0\"/>\n"
        "<defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" "
        "markerHeight=\"7\" orient=\"auto\"><path d=\"M0,0 L8,4 L0,8 z\" "
        "fill=\"#8a929c\"/></marker></defs>\n",
        width_, height);
    attention_panel(kMargin);
    const int between = kMargin + panel_height_ + kPanelGap / 2;
    add("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"#e3e6ea\"/>\n", kMargin, between,
        width_ - kMargin, between);
    expert_panel(kMargin + panel_height_ + kPanelGap);
    return out_ + "</svg>\n";
  }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    out_ += fmt::format(format, std::forward<Args>(args)...);
  }

  void text(int x, int y, int size, const char* fill, const char* anchor, const std::string& words,
            const char* weight = "normal") {
    add("<text x=\"{}\" y=\"{}\" font-size=\"{}\" fill=\"{}\" text-anchor=\"{}\" "
        "font-weight=\"{}\">{}</text>\n",
        x, y, size, fill, anchor, weight, words);
  }

  void heading(int top, const std::string& title, const std::string& what) {
    text(kMargin, top + 20, 18, "#1f2933", "start", title, "bold");
    text(kMargin, top + 43, 12, "#5b6570", "start", what);
  }

  // Stages with their names and the arrows between them; the cells come from `cell`(rank, place, x, y).
  template <class Cell>
  void stages(int top, Cell cell) {
    for (int64_t pp = 0; pp < s_.pp; ++pp) {
      const int x0 = left_ + static_cast<int>(pp) * (stage_width_ + kStageGap), y0 = top + kStageTop;
      if (s_.pp > 1) {
        text(x0 + stage_width_ / 2, top + 18, 12, "#5b6570", "middle", fmt::format("pipeline stage {}", pp));
        const int middle = y0 + stage_height_ / 2;
        if (pp + 1 < s_.pp)
          add("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"#8a929c\" stroke-width=\"1.6\" "
              "marker-end=\"url(#tip)\"/>\n",
              x0 + stage_width_ + 8, middle, x0 + stage_width_ + kStageGap - 8, middle);
      }
      for (int64_t dp = 0; dp < l_.dp(); ++dp)
        for (int64_t cp = 0; cp < s_.cp; ++cp)
          for (int64_t tp = 0; tp < s_.tp; ++tp) {
            const AttentionPlace place{tp, cp, dp, pp};
            cell(l_.rank_of(place), place,
                 x0 + kFrame + static_cast<int>(cp) * (group_width_ + kGroupGap + 2 * kFrame) +
                     static_cast<int>(tp) * (kCellWidth + kCellGap),
                 y0 + kFrame + static_cast<int>(dp) * row_height_);
          }
    }
  }

  void rank_cell(const char* panel, int64_t rank, int x, int y, const std::string& fill,
                 const std::string& where) {
    add("<g class=\"rank\" data-panel=\"{}\" data-rank=\"{}\"><title>rank {}: {}</title>", panel, rank, rank,
        where);
    add("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"6\" fill=\"{}\"/>", x, y, kCellWidth,
        kCellHeight, fill);
    add("<text x=\"{}\" y=\"{}\" font-size=\"15\" font-weight=\"bold\" fill=\"#1f2933\" "
        "text-anchor=\"middle\">{}</text>",
        x + kCellWidth / 2, y + 20, rank);
    add("<text x=\"{}\" y=\"{}\" font-size=\"9.5\" fill=\"#36404a\" text-anchor=\"middle\">{}</text></g>\n",
        x + kCellWidth / 2, y + 36, where);
  }

  void legend(int top, const char* axis, int64_t count, const std::string& shade_axis, int64_t shades) {
    int x = left_;
    const int64_t shown = std::min<int64_t>(count, kMostSwatches);
    for (int64_t i = 0; i < shown; ++i) {
      add("<rect x=\"{}\" y=\"{}\" width=\"14\" height=\"14\" rx=\"3\" fill=\"{}\"/>\n", x, top,
          colour(i, 0.5));
      const std::string name = fmt::format("{} {}{}", axis, i, i + 1 == shown && shown < count ? " ..." : "");
      text(x + 20, top + 11, 11, "#36404a", "start", name);
      x += 34 + 7 * static_cast<int>(name.size());
    }
    if (shades < 2) return;
    x += 10;
    const int64_t steps = std::min<int64_t>(shades, 8);
    for (int64_t i = 0; i < steps; ++i)
      add("<rect x=\"{}\" y=\"{}\" width=\"14\" height=\"14\" fill=\"{}\"/>\n", x + 14 * static_cast<int>(i),
          top, colour(0, part(i, steps)));
    text(x + 14 * static_cast<int>(steps) + 6, top + 11, 11, "#36404a", "start",
         fmt::format("{} 0 to {}", shade_axis, shades - 1));
  }

  void attention_panel(int top) {
    heading(
        top,
        fmt::format("Attention: {} ranks = tp {} \u00d7 cp {} \u00d7 dp {} \u00d7 pp {}", s_.world, s_.tp,
                    s_.cp, l_.dp(), s_.pp),
        s_.tp > 1
            ? "One colour: the ranks of one replica, which share its sequences. A frame: one tensor group."
            : "One colour: the ranks of one replica, which share its sequences.");
    stages(top + kTitle, [&](int64_t rank, const AttentionPlace& p, int x, int y) {
      if (p.tp == 0 && s_.tp > 1)
        add("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"9\" fill=\"none\" stroke=\"{}\" "
            "stroke-width=\"1.4\"/>\n",
            x - kFrame, y - kFrame, group_width_ + 2 * kFrame, kCellHeight + 2 * kFrame, colour(p.dp, 1.25));
      rank_cell("attention", rank, x, y, colour(p.dp, part(p.cp, s_.cp)),
                s_.cp > 1 ? fmt::format("tp {} cp {}", p.tp, p.cp) : fmt::format("tp {} dp {}", p.tp, p.dp));
    });
    legend(top + kTitle + kStageTop + stage_height_ + 18, "dp", l_.dp(), "cp", s_.cp);
  }

  void expert_panel(int top) {
    heading(
        top,
        fmt::format("Experts: the same {} ranks = etp {} \u00d7 ep {} \u00d7 edp {} \u00d7 pp {}", s_.world,
                    s_.etp, s_.ep, l_.edp(), s_.pp),
        "One colour: the ranks that exchange tokens. Together they hold every expert of their layers once.");
    stages(top + kTitle, [&](int64_t rank, const AttentionPlace&, int x, int y) {
      const ExpertPlace p = l_.expert(rank);
      rank_cell(
          "experts", rank, x, y, colour(p.edp, part(p.ep, s_.ep)),
          s_.etp > 1 ? fmt::format("ep {} etp {}", p.ep, p.etp) : fmt::format("ep {} edp {}", p.ep, p.edp));
    });
    legend(top + kTitle + kStageTop + stage_height_ + 18, "edp", l_.edp(), "ep", s_.ep);
  }

  const Layout& l_;
  const Sizes& s_;
  int group_width_, stage_width_, row_height_, stage_height_, width_, left_, panel_height_;
  std::string out_;
};

}  // namespace

std::string picture(const Layout& layout) {
  if (layout.world() > kMostPictureRanks)
    base::fail("a picture of {} ranks could not be read: at most {} are drawn", layout.world(),
               kMostPictureRanks);
  return Picture(layout).draw();
}

}  // namespace pleat::layout
