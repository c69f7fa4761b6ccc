#include "interpret/trace/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "program/code_rows.h"

namespace pleat::interpret {

using namespace program;
using nlohmann::json;

namespace {

int64_t origin_of(const Timeline& t) {
  int64_t origin = t.spans.empty() ? 0 : t.spans.front().start_ns;
  for (const Span& s : t.spans) origin = std::min(origin, s.start_ns);
  return origin;
}

const char* colour_of(Region region) {
  static constexpr const char* colours[] = {"#8c8c8c", "#4477aa", "#66ccee", "#aa3377", "#ccbb44", "#228833",
                                            "#ee6677", "#44aa99", "#997700", "#555577", "#bbbbbb"};
  static_assert(std::size(colours) == static_cast<size_t>(Region::HostLink) + 1, "a colour for every region");
  return colours[static_cast<size_t>(region)];
}

}  // namespace

std::string to_chrome_json(const Program& program, const Timeline& timeline, const std::string& of) {
  return to_chrome_json({{of, &program, &timeline}});
}

std::string to_chrome_json(const std::vector<NamedTimeline>& nodes) {
  json events = json::array();
  int64_t origin = 0;
  for (size_t n = 0; n < nodes.size(); ++n)
    origin = n == 0 ? origin_of(*nodes[n].timeline) : std::min(origin, origin_of(*nodes[n].timeline));
  for (size_t n = 0; n < nodes.size(); ++n) {
    const Program& program = *nodes[n].program;
    if (!nodes[n].name.empty())
      events.push_back(
          {{"ph", "M"}, {"pid", n}, {"name", "process_name"}, {"args", {{"name", nodes[n].name}}}});
    for (size_t lane = 0; lane < program.lanes.size(); ++lane)
      events.push_back({{"ph", "M"},
                        {"pid", n},
                        {"tid", lane},
                        {"name", "thread_name"},
                        {"args", {{"name", program.lanes[lane].name}}}});
    for (const Span& span : nodes[n].timeline->spans) {
      const Stage& stage = program.stages[static_cast<size_t>(span.stage)];
      events.push_back({{"ph", "X"},
                        {"pid", n},
                        {"tid", stage.lane},
                        {"name", stage_name(stage)},
                        {"cat", name_of(region_of(stage.op))},
                        {"ts", static_cast<double>(span.start_ns - origin) / 1e3},
                        {"dur", static_cast<double>(span.end_ns - span.start_ns) / 1e3}});
    }
  }
  return json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump();
}

std::string to_report_json(const Program& program, const Timeline& timeline, const std::string& of) {
  json out = json::array();
  const int64_t origin = origin_of(timeline);
  for (const Span& span : timeline.spans) {
    const Stage& stage = program.stages[static_cast<size_t>(span.stage)];
    out.push_back({{"name", stage_name(stage)},
                   {"lane", program.lanes[static_cast<size_t>(stage.lane)].name},
                   {"start_us", static_cast<double>(span.start_ns - origin) / 1e3},
                   {"dur_us", static_cast<double>(span.end_ns - span.start_ns) / 1e3},
                   {"category", name_of(region_of(stage.op))}});
    if (!of.empty()) out.back()["of"] = of;
  }
  return out.dump();
}

std::string to_svg(const Program& program, const Timeline& timeline) {
  const int64_t origin = origin_of(timeline);
  int64_t end = origin + 1;
  for (const Span& s : timeline.spans) end = std::max(end, s.end_ns);
  constexpr double kWidth = 1600, kLane = 34, kLeft = 90, kTop = 30;
  const double scale = (kWidth - kLeft - 10) / static_cast<double>(end - origin);
  const double height = kTop + kLane * static_cast<double>(program.lanes.size()) + 20;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n",
      kWidth, height);
  out += fmt::format("<text x=\"{}\" y=\"18\">program {}: {:.3f} ms</text>\n", kLeft, program.name,
                     static_cast<double>(end - origin) / 1e6);
  for (size_t lane = 0; lane < program.lanes.size(); ++lane)
    out += fmt::format("<text x=\"6\" y=\"{}\">{}</text>\n", kTop + kLane * static_cast<double>(lane) + 20,
                       program.lanes[lane].name);
  for (const Span& span : timeline.spans) {
    const Stage& stage = program.stages[static_cast<size_t>(span.stage)];
    out += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\"><title>{} {:.1f} "
        "us</title></rect>\n",
        kLeft + scale * static_cast<double>(span.start_ns - origin), kTop + kLane * stage.lane,
        std::max(0.3, scale * static_cast<double>(span.end_ns - span.start_ns)), kLane - 6,
        colour_of(region_of(stage.op)), stage_name(stage),
        static_cast<double>(span.end_ns - span.start_ns) / 1e3);
  }
  return out + "</svg>\n";
}

Breakdown breakdown(const Program& program, const Timeline& timeline) {
  std::map<std::string, double> by_region;
  int64_t begin = origin_of(timeline), end = begin;
  std::vector<std::pair<int64_t, int64_t>> busy;
  for (const Span& span : timeline.spans) {
    const Op op = program.stages[static_cast<size_t>(span.stage)].op;
    by_region[std::string(makes_codes(kernel_of(op)) ? kCodesRow : name_of(region_of(op)))] +=
        static_cast<double>(span.end_ns - span.start_ns) / 1e9;
    end = std::max(end, span.end_ns);
    busy.emplace_back(span.start_ns, span.end_ns);
  }
  std::sort(busy.begin(), busy.end());
  int64_t gaps = 0, reach = begin;
  for (const auto& [from, to] : busy) {
    if (from > reach) gaps += from - reach;
    reach = std::max(reach, to);
  }
  Breakdown out;
  out.regions.assign(by_region.begin(), by_region.end());
  std::sort(out.regions.begin(), out.regions.end(),
            [](const auto& a, const auto& b) { return a.second > b.second; });
  out.gaps = static_cast<double>(gaps) / 1e9;
  out.total = static_cast<double>(end - begin) / 1e9;
  return out;
}

}  // namespace pleat::interpret
