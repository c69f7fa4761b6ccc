#include "report/html/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>

#include "base/error.h"
#include "report/format.h"
#include "report/html/axis.h"
#include "report/html/markup.h"
#include "report/html/style.h"

namespace pleat::report::html {

namespace {

constexpr double kAxisHeight = 26, kLaneTitle = 20, kBarHeight = 26, kLaneGap = 12;
constexpr size_t kMaxStack = 6, kLongest = 8;

struct Category {
  std::string name;
  double total_us = 0.0;
  int64_t num_stages = 0;
};

// Longest total first; the order gives the colours.
std::vector<Category> categories_of(const std::vector<TimelineEvent>& events) {
  std::map<std::string, Category> by_name;
  for (const TimelineEvent& event : events) {
    Category& category = by_name[event.category];
    category.name = event.category;
    category.total_us += event.dur_us;
    ++category.num_stages;
  }
  std::vector<Category> out;
  for (auto& [name, category] : by_name) out.push_back(category);
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.total_us > b.total_us; });
  return out;
}

struct Lane {
  std::string name;
  std::vector<const TimelineEvent*> events;  // by start
  std::vector<size_t> level;                 // overlapping stages of one lane are stacked
  size_t num_levels = 1;
};

std::vector<Lane> lanes_of(const std::vector<TimelineEvent>& events) {
  std::vector<Lane> lanes;
  std::map<std::string, size_t> index;
  for (const TimelineEvent& event : events) {
    const auto [it, is_new] = index.try_emplace(event.lane, lanes.size());
    if (is_new) lanes.push_back({event.lane, {}, {}, 1});
    lanes[it->second].events.push_back(&event);
  }
  for (Lane& lane : lanes) {
    std::stable_sort(lane.events.begin(), lane.events.end(),
                     [](const auto* a, const auto* b) { return a->start_us < b->start_us; });
    std::vector<double> busy_until;
    for (const TimelineEvent* event : lane.events) {
      // Clocks of microseconds overlap by a rounding.
      constexpr double kSlackUs = 0.5;
      size_t level = 0;
      while (level < busy_until.size() && busy_until[level] > event->start_us + kSlackUs) ++level;
      level = std::min(level, kMaxStack - 1);
      if (level == busy_until.size()) busy_until.push_back(0);
      busy_until[level] = event->start_us + event->dur_us;
      lane.level.push_back(level);
    }
    lane.num_levels = std::max<size_t>(1, busy_until.size());
  }
  return lanes;
}

// Which stages are drawn: all, or the longest, ties in their order.
class Drawn {
 public:
  explicit Drawn(const std::vector<TimelineEvent>& events) {
    if (events.size() <= kMaxDrawnStages) return;
    num_left_out_ = events.size() - kMaxDrawnStages;
    std::vector<double> durations;
    for (const TimelineEvent& event : events) durations.push_back(event.dur_us);
    const auto last = durations.begin() + kMaxDrawnStages - 1;
    std::nth_element(durations.begin(), last, durations.end(), std::greater<>());
    shortest_us_ = *last;
    ties_left_ = static_cast<size_t>(std::count(durations.begin(), last + 1, shortest_us_));
  }
  bool take(const TimelineEvent& event) {
    if (num_left_out_ == 0 || event.dur_us > shortest_us_) return true;
    if (event.dur_us < shortest_us_ || ties_left_ == 0) return false;
    --ties_left_;
    return true;
  }
  size_t num_left_out() const { return num_left_out_; }
  double shortest_us() const { return shortest_us_; }

 private:
  size_t num_left_out_ = 0, ties_left_ = 0;
  double shortest_us_ = 0.0;
};

std::string bars(const Lane& lane, double top, const Axis& axis,
                 const std::map<std::string, size_t>& colour_of, Drawn& drawn) {
  std::string out;
  bool alternate = false;
  const double each = lane.num_levels == 1 ? kBarHeight : kBarHeight * 0.62;
  for (size_t i = 0; i < lane.events.size(); ++i) {
    const TimelineEvent& event = *lane.events[i];
    // Neighbours of one category alternate in shade, so that the border between them shows.
    alternate = i > 0 && lane.events[i - 1]->category == event.category && !alternate;
    if (!drawn.take(event)) continue;
    const double left = axis.place(event.start_us), width = axis.place(event.start_us + event.dur_us) - left;
    out += fmt::format(
        "<rect class=\"{}{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>{}\n{} from {}, {}"
        "</title></rect>",
        colour_class(colour_of.at(event.category)), alternate ? " alt" : "", percent(left),
        px(top + each * static_cast<double>(lane.level[i])), percent(std::max(width, 0.0003)), px(each),
        escape(event.name), format_microseconds(event.dur_us),
        format_microseconds(event.start_us - axis.low()), escape(event.category));
  }
  return out;
}

std::string time_label(double us) { return us == 0 ? "0" : format_microseconds(us); }

std::string drawing(const std::vector<Lane>& lanes, double low, double high,
                    const std::map<std::string, size_t>& colour_of, Drawn& drawn) {
  const Axis axis(low, high, Scale::Linear, 6, false);
  double height = kAxisHeight;
  std::vector<double> tops;
  for (const Lane& lane : lanes) {
    tops.push_back(height + kLaneTitle);
    const double each = lane.num_levels == 1 ? kBarHeight : kBarHeight * 0.62;
    height += kLaneTitle + each * static_cast<double>(lane.num_levels) + kLaneGap;
  }
  std::string out = fmt::format(
      "<svg class=\"timeline\" width=\"100%\" height=\"{}\" role=\"img\" "
      "aria-label=\"Timeline of one step\" data-hover=\"hint\">",
      px(height));
  const Axis from_zero(0, high - low, Scale::Linear, 6, false);
  for (const double tick : from_zero.ticks()) {
    const double at = from_zero.place(tick);
    out += fmt::format(
        "<line class=\"gridline\" x1=\"{0}\" x2=\"{0}\" y1=\"18\" y2=\"{1}\"/>"
        "<text class=\"tick\" x=\"{0}\" y=\"12\" text-anchor=\"{2}\">{3}</text>",
        percent(at), px(height),
        at < 0.02   ? "start"
        : at > 0.95 ? "end"
                    : "middle",
        time_label(tick));
  }
  for (size_t i = 0; i < lanes.size(); ++i) {
    double busy = 0;
    for (const TimelineEvent* event : lanes[i].events) busy += event->dur_us;
    out += fmt::format("<text class=\"lane\" x=\"0\" y=\"{}\">{} <tspan>{:.0f} % busy</tspan></text>",
                       px(tops[i] - 6), escape(shorten(lanes[i].name, 40)), 100 * busy / (high - low));
    out += bars(lanes[i], tops[i], axis, colour_of, drawn);
  }
  return out + "</svg>";
}

std::string category_table(const std::vector<Category>& categories) {
  double total = 0;
  for (const Category& category : categories) total += category.total_us;
  std::string out =
      "<div class=\"scroll\"><table><thead><tr><th>Category</th><th class=\"n\">Stages</th>"
      "<th class=\"n\">Time</th><th class=\"n\">Share</th><th class=\"wide\"></th></tr></thead><tbody>";
  for (size_t i = 0; i < categories.size(); ++i) {
    const double share = total > 0 ? categories[i].total_us / total : 0.0;
    out += fmt::format(
        "<tr><td><i class=\"dot {0}\"></i>{1}</td><td class=\"n\">{2}</td><td class=\"n\">{3}</td>"
        "<td class=\"n\">{4:.1f} %</td><td><svg class=\"bar\" width=\"100%\" height=\"10\">"
        "<rect class=\"{0}\" width=\"{5}\" height=\"10\" rx=\"2\"/></svg></td></tr>",
        colour_class(i), escape(shorten(categories[i].name, 60)), categories[i].num_stages,
        format_microseconds(categories[i].total_us), 100 * share, percent(share));
  }
  return out + "</tbody></table></div>";
}

std::string longest_table(const std::vector<TimelineEvent>& events,
                          const std::map<std::string, size_t>& colour_of) {
  std::vector<const TimelineEvent*> longest;
  for (const TimelineEvent& event : events) longest.push_back(&event);
  const size_t shown = std::min(kLongest, longest.size());
  std::partial_sort(longest.begin(), longest.begin() + static_cast<std::ptrdiff_t>(shown), longest.end(),
                    [](const auto* a, const auto* b) { return a->dur_us > b->dur_us; });
  std::string out =
      "<div class=\"scroll\"><table><thead><tr><th>Longest stages</th><th class=\"n\">Time</th></tr>"
      "</thead><tbody>";
  for (size_t i = 0; i < shown; ++i)
    out += fmt::format("<tr><td><i class=\"dot {}\"></i><code>{}</code></td><td class=\"n\">{}</td></tr>",
                       colour_class(colour_of.at(longest[i]->category)),
                       escape(shorten(longest[i]->name, 90)), format_microseconds(longest[i]->dur_us));
  return out + "</tbody></table></div>";
}

}  // namespace

std::string timeline(const std::vector<TimelineEvent>& events) {
  PLEAT_CHECK(!events.empty(), "an empty timeline");
  double low = events.front().start_us, high = low;
  for (const TimelineEvent& event : events) {
    low = std::min(low, event.start_us);
    high = std::max(high, event.start_us + event.dur_us);
  }
  if (!(high > low)) high = low + 1;
  const auto categories = categories_of(events);
  std::map<std::string, size_t> colour_of;
  for (size_t i = 0; i < categories.size(); ++i) colour_of[categories[i].name] = i;
  const auto lanes = lanes_of(events);
  Drawn drawn(events);

  std::string out = fmt::format(
      "<p class=\"note\">{} stages in {}, {} from the first start to the last end.", events.size(),
      lanes.size() == 1 ? "1 lane" : fmt::format("{} lanes", lanes.size()), format_microseconds(high - low));
  if (drawn.num_left_out() > 0)
    out += fmt::format(" The {} shortest stages, all of {} or less, are not drawn; the tables count them.",
                       drawn.num_left_out(), format_microseconds(drawn.shortest_us()));
  out += "</p><p class=\"legend\">";
  for (size_t i = 0; i < std::min(categories.size(), kNumColours); ++i)
    out += fmt::format("<span class=\"key\"><i class=\"{}\"></i>{}</span>", colour_class(i),
                       escape(shorten(categories[i].name, 40)));
  if (categories.size() > kNumColours) out += "<span class=\"key\"><i class=\"c0\"></i>other</span>";
  out += "</p>" + drawing(lanes, low, high, colour_of, drawn);
  out += "<div class=\"pair\">" + category_table(categories) + longest_table(events, colour_of) + "</div>";
  return out;
}

}  // namespace pleat::report::html
