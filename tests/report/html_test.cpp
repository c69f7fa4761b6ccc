#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "report/html/axis.h"
#include "report/html/heat_map.h"
#include "report/html/line_chart.h"
#include "report/html/markup.h"
#include "report/html/page.h"
#include "report/html/timeline.h"
#include "report/jsonl_log.h"
#include "report/report_support.h"
#include "report/write_report.h"

namespace pleat::report::html {
namespace {

constexpr const char* kHostile = "</title></script><script>alert(1)</script>\" onload='x' & \x01\xff<b>";

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++found;
  return found;
}

TEST(Markup, EscapeLeavesNothingAlive) {
  EXPECT_EQ(escape("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
  EXPECT_EQ(escape("é 中 \xF0\x9F\x99\x82\n\t"), "é 中 \xF0\x9F\x99\x82\n\t");
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(escape(std::string("\0\x1b\x7f", 3)), bad + bad + bad);
  EXPECT_EQ(escape("\xff"), bad);
  EXPECT_EQ(escape("\xC0\xAF"), bad + bad);            // overlong
  EXPECT_EQ(escape("\xED\xA0\x80"), bad + bad + bad);  // surrogate
  EXPECT_EQ(escape("\xE4\xB8"), bad + bad);            // cut off
  EXPECT_EQ(escape("\xC3<"), bad + "&lt;");            // must not swallow the <
  EXPECT_EQ(shorten("abcdef", 4), "abc…");
  EXPECT_EQ(shorten("äöüß", 4), "äöüß");
  EXPECT_EQ(px(-0.001), "0");
  EXPECT_EQ(px(12.5), "12.5");
  EXPECT_EQ(px(100), "100");
  EXPECT_EQ(percent(0.125), "12.5%");
}

TEST(Markup, TheCheckerItselfFails) {
  EXPECT_EQ(markup_fault("<p a=\"b\">x &amp; y<br/></p>"), "");
  EXPECT_NE(markup_fault("<p><b></p></b>"), "");
  EXPECT_NE(markup_fault("<p>"), "");
  EXPECT_NE(markup_fault("<p a=b></p>"), "");
  EXPECT_NE(markup_fault("a & b"), "");
  EXPECT_NE(markup_fault("<p>a < b</p>"), "");
}

TEST(Codes, TheSectionIsThereWhereSomethingWasCoded) {
  RunData run;
  run.folder = "somewhere";
  EXPECT_FALSE(has(page(run), "Codes of few bits"));
  run.codes = {{"experts", "gradients", 200000, 0, 5000, 0, 0.25}, {"mlp", "weights", 4096, 0, 0, 0, 7.5}};
  run.codes_step = 12;
  run.curves.flushed["experts, gradients"] = {{1, 0.5}, {12, 2.5}};
  const std::string text = page(run);
  EXPECT_EQ(markup_fault(text), "");
  EXPECT_TRUE(has(text, "Codes of few bits"));
  EXPECT_TRUE(has(text, "gradients of experts: 2.5 % flushed, 0 saturated, 0 NaN (step 12)"));
  EXPECT_TRUE(has(text, "<span class=\"pill fine\""));
  EXPECT_TRUE(has(text, "<span class=\"pill flushed\""));
  EXPECT_TRUE(has(text, "Numbers that became 0"));
  run.codes[0].module = kHostile;
  EXPECT_EQ(markup_fault(page(run)), "");
}

TEST(Axis, RoundTicks) {
  const Axis axis(1.3, 5.6, Scale::Linear, 5, true);
  EXPECT_EQ(axis.ticks(), (std::vector<double>{1, 2, 3, 4, 5, 6}));
  EXPECT_DOUBLE_EQ(axis.place(3.5), 0.5);
  EXPECT_EQ(axis.label(3), "3");
  const Axis rate(0, 12300, Scale::Linear, 5, true);
  EXPECT_EQ(rate.label(5000), "5k");
  EXPECT_EQ(rate.label(0), "0");
  const Axis lr(0, 3e-4, Scale::Linear, 5, true);
  EXPECT_EQ(lr.label(lr.ticks()[1]), "1e-04");
  const Axis log(0.02, 30, Scale::Log, 5, true);
  EXPECT_EQ(log.ticks(), (std::vector<double>{0.01, 0.1, 1, 10, 100}));
  EXPECT_NEAR(log.place(0.02 * std::sqrt(30 / 0.02)), log.place(0.02) / 2 + log.place(30) / 2, 1e-12);
  const Axis flat_log(1, 1, Scale::Log, 5, true);
  EXPECT_EQ(flat_log.ticks(), (std::vector<double>{0.5, 1, 2}));
  for (const double flat : {0.0, 5.0, -3e299, 1e-300}) {
    const Axis axis_of_one(flat, flat, Scale::Linear, 5, true);
    EXPECT_GE(axis_of_one.ticks().size(), 2u) << flat;
    EXPECT_GT(axis_of_one.place(flat), 0.0);
    EXPECT_LT(axis_of_one.place(flat), 1.0);
  }
}

TEST(Curve, ThinningKeepsSpikesAndFaults) {
  Curve curve;
  for (int i = 0; i < 100000; ++i) curve.push_back({static_cast<double>(i), 1.0});
  curve[31415].y = 99;
  curve[27182].y = -99;
  curve[50000].y = std::nan("");
  const Curve thinned = thin(curve, 200);
  EXPECT_LE(thinned.size(), 600u);
  double low = 0, high = 0;
  int faults = 0;
  for (size_t i = 0; i < thinned.size(); ++i) {
    EXPECT_GE(thinned[i].x, thinned[i > 0 ? i - 1 : 0].x);
    low = std::fmin(low, thinned[i].y);
    high = std::fmax(high, thinned[i].y);
    faults += std::isnan(thinned[i].y);
  }
  EXPECT_EQ(low, -99);
  EXPECT_EQ(high, 99);
  EXPECT_EQ(faults, 1);
}

TEST(Curve, SmoothingKeepsAStraightLine) {
  Curve line;
  for (int i = 0; i < 50; ++i) line.push_back({static_cast<double>(i), 100.0 - 2.0 * i});
  for (const Point& point : smooth(line, 7)) EXPECT_DOUBLE_EQ(point.y, 100.0 - 2.0 * point.x);
  EXPECT_EQ(smooth({{0, 1}, {1, std::nan("")}, {2, 3}}, 1).size(), 2u);
}

TEST(LineChart, WellFormedInEveryCase) {
  LineChart chart{kHostile, kHostile, kHostile, {}, Scale::Linear, false};
  EXPECT_EQ(markup_fault(line_chart(chart)), "");
  chart.series.push_back({kHostile, "red", {{1, std::nan("")}}, Series::Look::Line});
  EXPECT_TRUE(has(line_chart(chart), "No finite value"));
  chart.series.push_back({"b", "blue", {{1, 2}, {2, INFINITY}, {3, 4}}, Series::Look::Dots});
  for (const Scale scale : {Scale::Linear, Scale::Log}) {
    chart.y_scale = scale;
    const std::string svg = line_chart(chart);
    EXPECT_EQ(markup_fault(svg), "");
    EXPECT_EQ(count(svg, "class=\"bad\""), 2u);
    EXPECT_FALSE(has(svg, "<script"));
    EXPECT_FALSE(has(svg, "\"nan"));
  }
}

TEST(HeatMap, RampRisesAndCellsAreMarked) {
  double before = -1;
  for (int i = 0; i <= 20; ++i) {
    const std::string colour = ramp_colour(i / 20.0);
    const auto channel = [&](int at) {
      return std::stoi(colour.substr(static_cast<size_t>(at), 2), nullptr, 16);
    };
    const double brightness = 0.299 * channel(1) + 0.587 * channel(3) + 0.114 * channel(5);
    EXPECT_GT(brightness, before);
    before = brightness;
  }
  EXPECT_EQ(ramp_colour(-5), ramp_colour(0));
  EXPECT_EQ(ramp_colour(INFINITY), ramp_colour(1));
  EXPECT_DOUBLE_EQ(place_of_ratio(1), 0.5);
  EXPECT_DOUBLE_EQ(place_of_peak(1), 0.0);
  HeatMap map;
  map.title = kHostile;
  map.row_labels = {"r0", kHostile};
  map.col_labels = {"0", "1"};
  map.values = {0.0, 1.0, 2.0, kUnknown};
  map.marked = {true, false, false, false};
  map.hints = {"a", kHostile, "c", "d"};
  map.place = place_of_ratio;
  map.legend = {0, 1};
  const std::string svg = heat_map(map);
  EXPECT_EQ(markup_fault(svg), "");
  EXPECT_EQ(count(svg, "<title>"), 3u);
  EXPECT_TRUE(has(svg, "no token at all"));
}

TEST(Timeline, PlacesStagesAndSums) {
  std::vector<TimelineEvent> events = {{"a", "compute", "gemm", 1000, 600},
                                       {"b", "compute", "norm", 1600, 200},
                                       {kHostile, kHostile, kHostile, 1800, 200},
                                       {"late", "compute", "gemm", 1700, 300}};
  const std::string svg = timeline(events);
  EXPECT_EQ(markup_fault(svg), "");
  EXPECT_FALSE(has(svg, "<script"));
  EXPECT_TRUE(has(svg, "4 stages in 2 lanes, 1.00 ms"));
  EXPECT_TRUE(has(svg, "x=\"60%\" y=\"46\" width=\"20%\""));  // b
  EXPECT_TRUE(has(svg, "y=\"62.12\" width=\"30%\""));         // late overlaps b, so it is one level down
  EXPECT_TRUE(has(svg, "<td class=\"n\">900 µs</td><td class=\"n\">69.2 %</td>"));
  events.resize(1);
  events[0].dur_us = 0;
  EXPECT_EQ(markup_fault(timeline(events)), "");
}

TEST(Timeline, ManyStagesAreSaidToBeCut) {
  std::vector<TimelineEvent> events;
  for (size_t i = 0; i < 2 * kMaxDrawnStages; ++i)
    events.push_back({"s", "compute", "c", static_cast<double>(20000 * i), static_cast<double>(i)});
  std::string svg = timeline(events);
  EXPECT_EQ(count(svg, "<title>"), kMaxDrawnStages);
  EXPECT_TRUE(has(svg, "The 6000 shortest stages, all of 6.00 ms or less, are not drawn"));
  for (TimelineEvent& event : events) event.dur_us = 5;
  events[7].dur_us = 4;
  svg = timeline(events);
  EXPECT_EQ(count(svg, "<title>"), kMaxDrawnStages);
  EXPECT_FALSE(has(svg, "<title>s\n4.00"));
}

class RunFolder : public ::testing::Test {
 protected:
  void write_all() {
    JsonlLog log = JsonlLog::fresh(scratch_.at("metrics.jsonl"));
    for (int64_t step = 1; step <= 60; ++step) {
      StepRecord record = sample_record(step);
      record.grad_norm = 1.0;
      record.aux = {{kHostile, 0.5}};
      if (step == 30) record.loss = std::nan("");
      log.append(record);
    }
    nlohmann::json summary = {{"run", kHostile},
                              {"config", std::string("a = 1\n") + kHostile},
                              {"sample", kHostile},
                              {"final_loss", "nan"},
                              {"planned_peak_bytes", 1000},
                              {"measured_peak_bytes", 1001},
                              {"memory_by_owner", {{kHostile, 600}, {"weights", 300}}},
                              {"state_sha256", "ab"},
                              {kHostile, {1, 2}}};
    write_file(scratch_.at("summary.json"),
               summary.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    const nlohmann::json stage = {
        {"name", kHostile}, {"lane", 0}, {"start_us", 0}, {"dur_us", 5}, {"category", kHostile}};
    write_file(scratch_.at("timeline.json"),
               nlohmann::json::array({stage}).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  std::string report() {
    write_report(scratch_.path(), scratch_.at("report.html"));
    return read_file(scratch_.at("report.html"));
  }
  std::string fault() {
    std::string error = message_of([&] { report(); });
    EXPECT_FALSE(std::filesystem::exists(scratch_.at("report.html")));
    return error.size() > scratch_.path().size() ? error.substr(scratch_.path().size() + 1) : error;
  }
  TemporaryFolder scratch_;
};

TEST_F(RunFolder, WholePageIsWellFormedAndSelfContained) {
  write_all();
  const std::string page = report();
  EXPECT_EQ(markup_fault(page), "");
  EXPECT_EQ(count(page, "<script"), 1u);
  EXPECT_EQ(count(page, "alert(1)"), count(page, "&lt;script&gt;alert(1)"));
  EXPECT_FALSE(has(page, "http://"));
  EXPECT_FALSE(has(page, "https://"));
  EXPECT_FALSE(has(page, "url("));
  EXPECT_FALSE(has(page, "<link"));
  EXPECT_TRUE(has(page, "default-src 'none'"));
  for (const char* part :
       {"Learning rate", "Throughput", "Gradient norm", "Expert load", "by owner", "measured peak",
        "alignment and gaps", "One step", "Sample", "The run used more than its plan", "ab</code>"})
    EXPECT_TRUE(has(page, part)) << part;
  EXPECT_FALSE(has(page, "is not in the run folder"));
  EXPECT_TRUE(has(page, "<b>nan</b>"));  // the final loss, as it is
  EXPECT_FALSE(std::filesystem::exists(scratch_.at("report.html.tmp")));
}

TEST_F(RunFolder, ATimelineOfOneOfSeveralRanksSaysSo) {
  write_all();
  EXPECT_FALSE(has(report(), "counts as time of the exchange"));
  const nlohmann::json stage = {{"name", "a"}, {"lane", "compute"},  {"start_us", 0},
                                {"dur_us", 5}, {"category", "head"}, {"of", "rank 0 of 2 <b>"}};
  write_file(scratch_.at("timeline.json"), nlohmann::json::array({stage}).dump());
  EXPECT_TRUE(has(report(), "The step of rank 0 of 2 &lt;b&gt; alone. Waiting for other ranks"));
}

TEST_F(RunFolder, ExtremeNumbersStillMakeAPage) {
  for (const double value : {0.0, 5e-324, 1e-310, -1.7e308, 1.7e308, 1e300, -kInfinity, 1.0 + 1e-16}) {
    std::filesystem::remove(scratch_.at("metrics.jsonl"));
    JsonlLog log = JsonlLog::fresh(scratch_.at("metrics.jsonl"));
    for (int64_t step : {int64_t{1}, int64_t{2}, INT64_MAX / 2, INT64_MAX}) {
      StepRecord record = sample_record(step);
      for (double* field :
           {&record.loss, &record.lr, &record.grad_norm, &record.tokens_per_s, &record.model_tflops,
            &record.aux["z"], &record.eval->loss, &record.health[0].max_over_mean})
        *field = step == 2 ? 1.0 : value;
      log.append(record);
    }
    EXPECT_EQ(markup_fault(report()), "") << value;
  }
}

TEST_F(RunFolder, MissingPartsAreNamed) {
  EXPECT_NE(fault().find("not the folder of a run"), std::string::npos);
  write_file(scratch_.at("metrics.jsonl"), "");
  std::string page = report();
  EXPECT_EQ(markup_fault(page), "");
  for (const char* part : {"metrics.jsonl is empty", "summary.json is not in the run folder",
                           "timeline.json is not in the run folder", "no router health"})
    EXPECT_TRUE(has(page, part)) << part;
  std::filesystem::remove(scratch_.at("metrics.jsonl"));
  write_file(scratch_.at("summary.json"), "{}");
  page = report();
  EXPECT_EQ(markup_fault(page), "");
  EXPECT_TRUE(has(page, "metrics.jsonl is not in the run folder"));
  EXPECT_TRUE(has(page, "no memory figures"));
}

TEST_F(RunFolder, MalformedFilesAreNamedWithTheirLine) {
  write_file(scratch_.at("summary.json"), "{\n\"run\": \"x\",\n\"steps\": }");
  EXPECT_EQ(fault().rfind("summary.json:3: not valid JSON", 0), 0u);
  write_file(scratch_.at("summary.json"), "{\n\"run\": \"x\",\n\"steps\": []}");
  EXPECT_EQ(fault(), "summary.json:3: \"steps\" is [], needs a number or \"nan\", \"inf\", \"-inf\"");
  write_file(scratch_.at("summary.json"), "{\"memory_by_owner\": {\"w\": -1}}");
  EXPECT_EQ(fault(), "summary.json:1: \"w\" has -1 bytes, needs a number from 0 to 1e18");
  write_file(scratch_.at("summary.json"), "{\"x\":" + std::string(100000, '['));
  EXPECT_EQ(fault(), "summary.json: JSON nests deeper than 64 levels");
  write_file(scratch_.at("summary.json"), "[]");
  EXPECT_EQ(fault(), "summary.json:1: is array, needs an object");
  std::filesystem::remove(scratch_.at("summary.json"));
  write_file(scratch_.at("timeline.json"), "[\n{\"name\":\"a\"}]");
  EXPECT_EQ(fault(), "timeline.json: stage 0: has no \"lane\"");
  write_file(scratch_.at("timeline.json"),
             "[{\"name\":\"a\",\"lane\":\"l\",\"category\":\"c\",\"start_us\":0,\"dur_us\":-1}]");
  EXPECT_EQ(fault(), "timeline.json: stage 0: \"dur_us\" is -1, needs a time in microseconds");
  write_file(scratch_.at("timeline.json"), "[\n\n{]");
  EXPECT_EQ(fault().rfind("timeline.json:3: not valid JSON", 0), 0u);
  std::filesystem::remove(scratch_.at("timeline.json"));
  EXPECT_NE(
      message_of([&] { write_report(scratch_.at("nowhere"), scratch_.at("x.html")); }).find("is no folder"),
      std::string::npos);
}

TEST_F(RunFolder, ADamagedLogLineIsLeftOutAndNamed) {
  write_file(scratch_.at("metrics.jsonl"), "{\"step\":1}\n{\"step\":\n{\"step\":3}\n");
  const WrittenReport written = write_report(scratch_.path(), scratch_.at("report.html"));
  EXPECT_EQ(written.last_step, 3);
  ASSERT_EQ(written.log_faults.size(), 1u);
  EXPECT_EQ(written.log_faults[0], (scratch_.at("metrics.jsonl")) + ":2: not valid JSON (8 bytes)");
  EXPECT_TRUE(has(read_file(scratch_.at("report.html")), "metrics.jsonl:2: not valid JSON"));
}

TEST_F(RunFolder, UnwritableTargetIsAnError) {
  write_all();
  EXPECT_NE(message_of([&] {
              write_report(scratch_.path(), scratch_.at("no/such/report.html"));
            }).find("cannot write"),
            std::string::npos);
}

}  // namespace
}  // namespace pleat::report::html
