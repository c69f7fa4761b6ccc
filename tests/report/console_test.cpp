#include "report/console.h"

#include <gtest/gtest.h>

#include <cmath>

#include "report/format.h"
#include "report/report_support.h"
#include "report/table.h"

namespace pleat::report {
namespace {

StepRecord plain(int64_t step) {
  StepRecord record;
  record.step = step;
  record.loss = 1.93124;
  record.lr = 3e-4;
  record.tokens_per_s = 12300;
  const std::vector<int64_t> load = {100, 100};
  record.health.push_back(router_health(0, load, 0, {}, std::span<const float>()));
  return record;
}

TEST(Console, ProgressText) {
  EXPECT_EQ(progress_text(plain(120), 400, 72.0),
            "step 120/400  loss 1.9312  lr 3.0e-04  12.3 ktok/s  1.2 min left  experts balanced");
  StepRecord ahead = plain(120);
  ahead.mtp_loss = {2.5, 3.25};
  EXPECT_EQ(progress_text(ahead, 400, 72.0),
            "step 120/400  loss 1.9312  mtp 2.5000 3.2500  lr 3.0e-04  12.3 ktok/s  1.2 min left  experts "
            "balanced");
  StepRecord last = plain(400);
  last.health.clear();
  last.loss = std::nan("");
  last.eval = EvalRecord{1.5, 2.1640};
  last.refused_steps = 2;
  EXPECT_EQ(progress_text(last, 400, 0.0),
            "step 400/400  loss nan  lr 3.0e-04  12.3 ktok/s  eval 1.5000 (2.164 bits/byte)  2 refused");
}

TEST(Console, SaysWhatHappensToCodes) {
  StepRecord record = plain(120);
  record.codes = {{"mlp", "weights", 1000, 0, 9, 0, 1.0}};
  EXPECT_EQ(progress_text(record, 400, 72.0), progress_text(plain(120), 400, 72.0));
  record.codes.push_back({"experts", "gradients", 1000, 0, 10, 0, 1.0});
  EXPECT_NE(progress_text(record, 400, 72.0).find("  codes flushed"), std::string::npos);
  std::string out;
  Progress progress(
      400, Progress::Mode::Lines, [&](std::string_view text) { out += text; }, 1e9);
  for (int64_t step = 1; step <= 3; ++step) progress.step_done(record, static_cast<double>(step));
  EXPECT_EQ(out.find("codes flushed: 1 % or more"), out.rfind("codes flushed: 1 % or more")) << out;
  EXPECT_NE(out.find("(gradients of experts: 1 % flushed, 0 saturated, 0 NaN)"), std::string::npos) << out;
  record.codes[0].saturated = 1;
  progress.step_done(record, 4);
  EXPECT_NE(out.find("codes saturated: numbers past the largest code"), std::string::npos) << out;
  record.codes[1].nan = 1;
  progress.step_done(record, 5);
  EXPECT_NE(out.find("codes non-finite: numbers became NaN"), std::string::npos) << out;
}

TEST(Console, EtaFollowsThePaceOfTheLastSteps) {
  Eta eta(1000);
  EXPECT_TRUE(std::isnan(eta.seconds_left()));
  eta.step_done(100, 50.0);
  EXPECT_TRUE(std::isnan(eta.seconds_left()));
  eta.step_done(101, 52.0);
  EXPECT_DOUBLE_EQ(eta.seconds_left(), 899 * 2.0);
  double now = 52.0;
  for (int64_t step = 102; step <= 300; ++step) eta.step_done(step, now += 0.5);
  EXPECT_DOUBLE_EQ(eta.seconds_left(), 700 * 0.5);
  eta.step_done(1000, now + 1);
  EXPECT_EQ(eta.seconds_left(), 0.0);
}

TEST(Console, LinesModeIsQuiet) {
  std::string out;
  Progress progress(
      100, Progress::Mode::Lines, [&](std::string_view text) { out += text; }, 10.0);
  for (int64_t step = 1; step <= 100; ++step) {
    StepRecord record = plain(step);
    if (step == 55) record.eval = EvalRecord{1.0, 1.0};
    record.refused_steps = step >= 72 ? 1 : 0;
    progress.step_done(record, static_cast<double>(step));
  }
  std::vector<int> shown;
  for (size_t at = 0; (at = out.find("step ", at)) != std::string::npos; ++at)
    shown.push_back(std::stoi(out.substr(at + 5)));
  EXPECT_EQ(shown, (std::vector<int>{1, 11, 21, 31, 41, 51, 55, 65, 72, 82, 92, 100}));
  EXPECT_EQ(out.find('\r'), std::string::npos);
}

TEST(Console, RewriteModeKeepsOneLine) {
  std::string out;
  Progress progress(
      9, Progress::Mode::Rewrite, [&](std::string_view text) { out += text; }, 10.0, 20);
  progress.step_done(plain(1), 0.0);
  EXPECT_EQ(out, "\rstep 1/9  loss 1.931\x1b[K");
  out.clear();
  progress.message("saved");
  progress.finish();
  EXPECT_EQ(out, "\nsaved\n");
}

TEST(Console, AWordAboutTheExpertsIsExplainedWhenItFirstAppears) {
  std::string out;
  Progress progress(
      9, Progress::Mode::Lines, [&](std::string_view text) { out += text; }, 0.0);
  const auto step = [&](int64_t number, const std::vector<int64_t>& load) {
    StepRecord record = plain(number);
    record.health[0] = router_health(0, load, 0, {}, std::span<const float>());
    out.clear();
    progress.step_done(record, static_cast<double>(number));
  };
  step(1, {100, 100, 100, 100});
  EXPECT_EQ(out.find("experts balanced:"), std::string::npos) << out;
  step(2, {250, 50, 60, 70});
  EXPECT_TRUE(out.starts_with("experts skewed: some expert has twice the mean load of its layer or more"))
      << out;
  EXPECT_NE(out.find("\nstep 2/9"), std::string::npos);
  EXPECT_NE(out.find("or none where the mean is below 8 tokens"), std::string::npos) << out;
  step(3, {250, 50, 60, 70});
  EXPECT_TRUE(out.starts_with("step 3/9")) << "said once: " << out;
  step(4, {190, 170, 0, 180});
  EXPECT_TRUE(out.starts_with("experts dead: some expert got no token at all")) << out;
  step(5, {1000, 1, 1, 1});
  EXPECT_TRUE(out.starts_with("experts collapsing: a layer uses less than half of its experts")) << out;
}

TEST(Format, Counts) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(950), "950");
  EXPECT_EQ(format_count(12345), "12.3 k");
  EXPECT_EQ(format_count(999700), "1.00 M");
  EXPECT_EQ(format_count(4.56e6), "4.56 M");
  EXPECT_EQ(format_count(-7.89e9), "-7.89 G");
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(2.25 * 1024 * 1024 * 1024), "2.25 GiB");
  EXPECT_EQ(format_bytes(std::nan("")), "nan");
  EXPECT_EQ(format_token_rate(87.4), "87.4 tok/s");
  EXPECT_EQ(format_token_rate(1.2e6), "1.20 Mtok/s");
}

TEST(Format, Durations) {
  EXPECT_EQ(format_duration(0.85), "850 ms");
  EXPECT_EQ(format_duration(1.0), "1.0 s");
  EXPECT_EQ(format_duration(42.4), "42 s");
  EXPECT_EQ(format_duration(59.6), "1.0 min");
  EXPECT_EQ(format_duration(72), "1.2 min");
  EXPECT_EQ(format_duration(3599), "1.0 h");
  EXPECT_EQ(format_duration(3.4 * 3600), "3.4 h");
  EXPECT_EQ(format_duration(2.1 * 86400), "2.1 days");
  EXPECT_EQ(format_duration(INFINITY), "inf");
  EXPECT_EQ(format_microseconds(0.8), "0.80 µs");
  EXPECT_EQ(format_microseconds(3200), "3.20 ms");
  EXPECT_EQ(format_microseconds(1.25e6), "1.25 s");
  EXPECT_EQ(format_significant(0.000312, 3), "3.12e-04");
  EXPECT_EQ(format_significant(1.93124, 5), "1.9312");
  EXPECT_EQ(format_significant(0.0376, 3), "0.0376");
  EXPECT_EQ(format_significant(0, 3), "0");
}

TEST(Table, AlignsAndDisarms) {
  Table table({{"owner"}, {"bytes", Align::Right}, {"note"}});
  table.add_row({"weights", "12", "µ"});
  table.add_row({"é", "1234567", "a\x1b[31m\nb"});
  table.add_rule();
  table.add_row({"", "9", ""});
  EXPECT_EQ(table.text(),
            "owner      bytes  note\n"
            "--------------------------\n"
            "weights       12  µ\n"
            "é        1234567  a?[31m?b\n"
            "--------------------------\n"
            "               9\n");
}

}  // namespace
}  // namespace pleat::report
