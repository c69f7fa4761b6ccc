#include "report/jsonl_log.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "report/record_json.h"
#include "report/report_support.h"

namespace pleat::report {
namespace {

void expect_same_bits(double a, double b) {
  EXPECT_EQ(std::bit_cast<uint64_t>(a), std::bit_cast<uint64_t>(b));
}

void write_steps(const std::string& path, int64_t first, int64_t last) {
  JsonlLog log = JsonlLog::fresh(path);
  for (int64_t step = first; step <= last; ++step) log.append(sample_record(step));
}

TEST(JsonlLog, LossesOfMultiTokenPrediction) {
  StepRecord record = sample_record(1);
  record.mtp_loss = {2.5, std::nan("")};
  const StepRecord back = record_from_json_line(to_json_line(record), "here");
  ASSERT_EQ(back.mtp_loss.size(), 2u);
  EXPECT_EQ(back.mtp_loss[0], 2.5);
  EXPECT_TRUE(std::isnan(back.mtp_loss[1]));
  EXPECT_EQ(to_json_line(sample_record(1)).find("mtp_loss"), std::string::npos);
  EXPECT_THROW(record_from_json_line("{\"step\": 1, \"mtp_loss\": 2}", "here"), base::Error);
}

TEST(JsonlLog, AnEvaluationWithoutBytesLogsNoBitsPerByte) {
  StepRecord record = sample_record(1);
  record.eval = EvalRecord{1.5, kUnknown};
  EXPECT_EQ(to_json_line(record).find("bits_per_byte"), std::string::npos);
  const StepRecord back = record_from_json_line(to_json_line(record), "here");
  EXPECT_EQ(back.eval->loss, 1.5);
  EXPECT_TRUE(std::isnan(back.eval->bits_per_byte));
}

TEST(JsonlLog, WhereTheTimeWent) {
  StepRecord record = sample_record(1);
  record.breakdown = {{"attention", 12.5}, {"host gaps", 0.25}};
  EXPECT_EQ(record_from_json_line(to_json_line(record), "here").breakdown, record.breakdown);
  EXPECT_EQ(to_json_line(sample_record(1)).find("breakdown"), std::string::npos);
  EXPECT_THROW(record_from_json_line("{\"step\": 1, \"breakdown\": [1]}", "here"), base::Error);
}

TEST(JsonlLog, RoundTripKeepsEveryBit) {
  const TemporaryFolder scratch;
  write_steps(scratch.at("metrics.jsonl"), 1, 3);
  const auto records = read_log(scratch.at("metrics.jsonl"));
  ASSERT_EQ(records.size(), 3u);
  const StepRecord &got = records[1], want = sample_record(2);
  EXPECT_EQ(got.step, 2);
  expect_same_bits(got.loss, want.loss);
  ASSERT_EQ(got.aux.size(), 2u);
  expect_same_bits(got.aux.at("load_balance"), 0.1 + 0.2);
  expect_same_bits(got.aux.at("z"), 5e-324);
  expect_same_bits(got.lr, want.lr);
  expect_same_bits(got.grad_norm, want.grad_norm);
  expect_same_bits(got.clip_scale, want.clip_scale);
  EXPECT_EQ(got.tokens, 9007199254740993);
  expect_same_bits(got.tokens_per_s, want.tokens_per_s);
  expect_same_bits(got.model_tflops, want.model_tflops);
  expect_same_bits(got.hardware_tflops, want.hardware_tflops);
  expect_same_bits(got.percent_of_gemm, want.percent_of_gemm);
  expect_same_bits(got.step_seconds, want.step_seconds);
  EXPECT_EQ(got.refused_steps, 2);
  ASSERT_TRUE(got.eval);
  expect_same_bits(got.eval->loss, 1.5);
  expect_same_bits(got.eval->bits_per_byte, 2.25);
  ASSERT_EQ(got.health.size(), 1u);
  const RouterHealth &health = got.health[0], &source = want.health[0];
  EXPECT_EQ(health.layer, 3);
  EXPECT_EQ(health.load, source.load);
  EXPECT_EQ(health.dead, 1);
  expect_same_bits(health.max_over_mean, source.max_over_mean);
  expect_same_bits(health.min_over_mean, source.min_over_mean);
  expect_same_bits(health.entropy, source.entropy);
  expect_same_bits(health.cv, source.cv);
  expect_same_bits(health.dropped_share, source.dropped_share);
  expect_same_bits(health.logit_max, source.logit_max);
  expect_same_bits(health.logit_rms, source.logit_rms);
  expect_same_bits(health.bias_min, source.bias_min);
  expect_same_bits(health.bias_max, source.bias_max);
  EXPECT_EQ(got.codes, want.codes);
}

TEST(JsonlLog, BadNumbersAreSeen) {
  StepRecord record;
  record.step = 5;
  record.loss = std::nan("");
  record.grad_norm = std::numeric_limits<double>::infinity();
  record.lr = -std::numeric_limits<double>::infinity();
  const std::string line = to_json_line(record);
  EXPECT_NE(line.find("\"loss\":\"nan\""), std::string::npos) << line;
  EXPECT_NE(line.find("\"grad_norm\":\"inf\""), std::string::npos) << line;
  EXPECT_NE(line.find("\"lr\":\"-inf\""), std::string::npos) << line;
  const StepRecord back = record_from_json_line(line, "here");
  EXPECT_TRUE(std::isnan(back.loss));
  EXPECT_EQ(back.grad_norm, record.grad_norm);
  EXPECT_EQ(back.lr, record.lr);
  EXPECT_FALSE(back.eval);
}

TEST(JsonlLog, ResumeReadsAsOneRun) {
  const TemporaryFolder scratch;
  const std::string broken = scratch.at("broken.jsonl"), whole = scratch.at("whole.jsonl");
  write_steps(broken, 1, 9);
  std::filesystem::resize_file(broken, std::filesystem::file_size(broken) - 20);  // killed inside a write
  {
    JsonlLog log = JsonlLog::resumed(broken, 4);
    for (int64_t step = 5; step <= 12; ++step) log.append(sample_record(step));
  }
  write_steps(whole, 1, 12);
  EXPECT_EQ(read_file(broken), read_file(whole));
  EXPECT_FALSE(std::filesystem::exists(broken + ".tmp"));
}

TEST(JsonlLog, ResumeOfNothingAndFreshOverSomething) {
  const TemporaryFolder scratch;
  { JsonlLog::resumed(scratch.at("new.jsonl"), 10).append(sample_record(11)); }
  EXPECT_EQ(read_log(scratch.at("new.jsonl")).size(), 1u);
  const std::string error = message_of([&] { JsonlLog::fresh(scratch.at("new.jsonl")); });
  EXPECT_NE(error.find("of another run"), std::string::npos) << error;
  try {
    JsonlLog::fresh(scratch.at("no/such/folder/x.jsonl"));
    FAIL();
  } catch (const base::Error& caught) {
    EXPECT_EQ(caught.code(), base::ExitCode::Storage);
  }
}

TEST(JsonlLog, EveryTornTailIsTolerated) {
  const TemporaryFolder scratch;
  const std::string path = scratch.at("metrics.jsonl");
  const std::string first = to_json_line(sample_record(1)) + "\n", second = to_json_line(sample_record(2));
  for (size_t cut = 1; cut < second.size(); cut += 7) {
    write_file(path, first + second.substr(0, cut));
    int64_t seen = 0;
    const JsonlTail tail = for_each_record(path, [&](const StepRecord&) { ++seen; });
    EXPECT_TRUE(tail.torn) << cut;
    EXPECT_EQ(seen, 1);
  }
  write_file(path, first + std::string(100, '\0'));
  EXPECT_TRUE(for_each_record(path, [](const StepRecord&) {}).torn);
  write_file(path, first + second);
  EXPECT_EQ(for_each_record(path, [](const StepRecord&) {}).num_records, 2);
}

TEST(JsonlLog, MalformedLinesAreNamed) {
  const TemporaryFolder scratch;
  const std::string path = scratch.at("metrics.jsonl");
  const auto error_for = [&](const std::string& line) {
    write_file(path,
               to_json_line(sample_record(3)) + "\n" + line + "\n" + to_json_line(sample_record(9)) + "\n");
    std::string error = message_of([&] { read_log(path); });
    EXPECT_EQ(error.rfind(path + ":2: ", 0), 0u) << error;
    return error.substr(std::min(error.size(), path.size() + 4));
  };
  EXPECT_EQ(error_for("{\"step\":4"), "not valid JSON (9 bytes)");
  EXPECT_EQ(error_for("[4]"), "is array, needs an object");
  EXPECT_EQ(error_for("{\"loss\":4}"), "has no \"step\"");
  EXPECT_EQ(error_for("{\"step\":4.5}"), "\"step\" is 4.5, needs an integer");
  EXPECT_EQ(error_for("{\"step\":18446744073709551615}"),
            "\"step\" is 18446744073709551615, needs an integer");
  EXPECT_EQ(error_for("{\"step\":4,\"loss\":null}"),
            "\"loss\" is null, needs a number or \"nan\", \"inf\", \"-inf\"");
  EXPECT_EQ(error_for("{\"step\":4,\"router\":[1]}"), "\"router\" holds number, needs objects");
  EXPECT_EQ(error_for("{\"step\":4,\"router\":[{\"load\":[-1]}]}"), "\"load\" holds -1");
  EXPECT_EQ(error_for("{\"step\":2}"), "step 2 follows step 3, steps must not go back");
}

std::vector<int64_t> steps_in(const std::string& path) {
  std::vector<int64_t> out;
  for (const StepRecord& record : read_log(path)) out.push_back(record.step);
  return out;
}

TEST(JsonlLog, OneBadByteDoesNotKeepARunFromGoingOn) {
  const TemporaryFolder scratch;
  const std::string path = scratch.at("metrics.jsonl");
  write_steps(path, 1, 6);
  const std::string whole = read_file(path);
  std::string damaged = whole;
  const size_t third = damaged.find("{\"step\":3");
  damaged[third] = '\x01';
  write_file(path, damaged);
  {
    JsonlLog log = JsonlLog::resumed(path, 5);
    ASSERT_EQ(log.faults().size(), 1u);
    EXPECT_EQ(log.faults()[0].rfind(path + ":3: not valid JSON", 0), 0u) << log.faults()[0];
    EXPECT_NE(log.faults()[0].find(path + ".damaged"), std::string::npos) << log.faults()[0];
    log.append(sample_record(6));
  }
  EXPECT_EQ(steps_in(path), (std::vector<int64_t>{1, 2, 4, 5, 6}));
  const size_t end = damaged.find('\n', third);
  EXPECT_EQ(read_file(path + ".damaged"), damaged.substr(third, end + 1 - third));
  EXPECT_TRUE(JsonlLog::resumed(path, 6).faults().empty());
}

TEST(JsonlLog, AStepThatStandsOutIsTheOneSetAside) {
  const TemporaryFolder scratch;
  const std::string path = scratch.at("metrics.jsonl");
  for (const auto& [wrong, step] : {std::pair{"{\"step\":9", 5}, {"{\"step\":1", 5}, {"{\"step\":9", 100}}) {
    std::filesystem::remove(path);
    write_steps(path, 1, 6);
    std::string text = read_file(path);
    text.replace(text.find("{\"step\":3"), 9, wrong);
    write_file(path, text);
    const auto faults = truncate_log(path, step);
    ASSERT_EQ(faults.size(), 1u) << wrong;
    EXPECT_EQ(faults[0].rfind(path + ":3: step", 0), 0u) << faults[0];
    EXPECT_EQ(steps_in(path).size(), step == 5 ? 4u : 5u) << wrong;
  }
}

TEST(JsonlLog, NamesCannotBreakTheLine) {
  StepRecord record;
  record.aux["a\n\"b\xff"] = 1.0;
  const std::string line = to_json_line(record);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(record_from_json_line(line, "here").aux.size(), 1u);
}

}  // namespace
}  // namespace pleat::report
