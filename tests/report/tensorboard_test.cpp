#include "report/tensorboard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "base/error.h"
#include "report/report_support.h"

namespace pleat::report {
namespace {

template <class T>
T take(std::string_view& bytes) {
  T value;
  if (bytes.size() < sizeof(T)) throw std::runtime_error("record cut off");
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes.remove_prefix(sizeof(T));
  return value;
}

std::vector<std::string> records_of(std::string_view bytes) {
  std::vector<std::string> out;
  while (!bytes.empty()) {
    const std::string_view header = bytes.substr(0, 8);
    const auto length = take<uint64_t>(bytes);
    EXPECT_EQ(take<uint32_t>(bytes), masked_crc32c(header));
    out.emplace_back(bytes.substr(0, length));
    bytes.remove_prefix(length);
    EXPECT_EQ(take<uint32_t>(bytes), masked_crc32c(out.back()));
  }
  return out;
}

// A parser of its own, so that the writer is not checked with itself: field number -> raw values.
using Message = std::multimap<int, std::string>;
uint64_t varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = take<uint8_t>(bytes);
    value |= uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return value;
  }
}
Message parse(std::string_view bytes) {
  Message out;
  while (!bytes.empty()) {
    const uint64_t tag = varint(bytes);
    const int field = static_cast<int>(tag >> 3);
    size_t length = 0;
    switch (tag & 7) {
      case 0:
        out.emplace(field, std::to_string(varint(bytes)));
        continue;
      case 1:
        length = 8;
        break;
      case 5:
        length = 4;
        break;
      case 2:
        length = varint(bytes);
        break;
      default:
        throw std::runtime_error("bad wire type");
    }
    if (length > bytes.size()) throw std::runtime_error("field cut off");
    out.emplace(field, std::string(bytes.substr(0, length)));
    bytes.remove_prefix(length);
  }
  return out;
}
template <class T>
T number(const Message& message, int field) {
  std::string_view raw = message.find(field)->second;
  return take<T>(raw);
}

std::map<std::string, Message> values_of(const std::string& event) {
  std::map<std::string, Message> out;
  const Message outer = parse(event), summary = parse(outer.find(5)->second);
  for (const auto& [field, raw] : summary) {
    const Message value = parse(raw);
    EXPECT_TRUE(out.emplace(value.find(1)->second, value).second) << "key written twice";
  }
  return out;
}

TEST(TensorBoard, KnownChecksums) {
  // CRC-32C of "123456789" is e3069283; masking rotates right by 15 and adds a282ead8.
  EXPECT_EQ(masked_crc32c("123456789"), ((0xE3069283u >> 15) | (0xE3069283u << 17)) + 0xA282EAD8u);
  // 32 zero bytes (RFC 3720): 8a9136aa.
  EXPECT_EQ(masked_crc32c(std::string(32, '\0')), ((0x8A9136AAu >> 15) | (0x8A9136AAu << 17)) + 0xA282EAD8u);
  EXPECT_EQ(masked_crc32c(""), 0xA282EAD8u);
}

TEST(TensorBoard, FileReadsBack) {
  const TemporaryFolder scratch;
  TensorBoardWriter writer(scratch.at("tb"), 0);
  writer.append(sample_record(300), 1234.5);
  const auto events = records_of(read_file(writer.path()));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(parse(events[0]).find(3)->second, "brain.Event:2");
  const Message event = parse(events[1]);
  EXPECT_EQ(number<double>(event, 1), 1234.5);
  EXPECT_EQ(event.find(2)->second, "300");
  const auto values = values_of(events[1]);
  EXPECT_EQ(number<float>(values.at("train/loss"), 2), static_cast<float>(sample_record(300).loss));
  EXPECT_EQ(number<float>(values.at("aux/load_balance"), 2), 0.3f);
  EXPECT_EQ(number<float>(values.at("eval/bits_per_byte"), 2), 2.25f);
  EXPECT_EQ(number<float>(values.at("router/worst_max_over_mean"), 2), 2.0f);
  EXPECT_EQ(number<float>(values.at("router/dead_experts"), 2), 1.0f);
  EXPECT_EQ(number<float>(values.at("router/bias_min"), 2), -0.5f);
  EXPECT_EQ(number<float>(values.at("codes_flushed/experts_gradients"), 2), 1200.0f / 9007199254740993.0f);
  EXPECT_EQ(number<float>(values.at("codes_largest/attention_weights"), 2), 7.5f);
  EXPECT_EQ(number<float>(values.at("codes/saturated"), 2), 3.0f);
  EXPECT_EQ(number<float>(values.at("codes/nan"), 2), 1.0f);
  const Message histogram = parse(values.at("expert_load/layer_003").find(5)->second);
  EXPECT_EQ(number<double>(histogram, 2), 4.0);   // max: number of experts
  EXPECT_EQ(number<double>(histogram, 3), 80.0);  // num
  std::string_view buckets = histogram.find(7)->second, limits = histogram.find(6)->second;
  for (const double want : {10.0, 0.0, 30.0, 40.0}) EXPECT_EQ(take<double>(buckets), want);
  for (const double want : {1.0, 2.0, 3.0, 4.0}) EXPECT_EQ(take<double>(limits), want);
}

TEST(TensorBoard, UnknownIsLeftOutButBadLossStays) {
  const TemporaryFolder scratch;
  TensorBoardWriter writer(scratch.at("tb"), 0);
  StepRecord record;
  record.step = 1;
  writer.append(record, 0.0);
  const auto values = values_of(records_of(read_file(writer.path()))[1]);
  EXPECT_TRUE(std::isnan(number<float>(values.at("train/loss"), 2)));
  EXPECT_EQ(values.count("train/lr"), 0u);
  EXPECT_EQ(values.count("eval/loss"), 0u);
}

TEST(TensorBoard, NumberOfKeysIsBounded) {
  const TemporaryFolder scratch;
  TensorBoardWriter writer(scratch.at("tb"), 0);
  StepRecord record = sample_record(1);
  for (int layer = 0; layer < 200; ++layer) {
    record.health.push_back(record.health.front());
    record.health.back().layer = layer + 4;
  }
  writer.append(record, 0.0);
  const auto values = values_of(records_of(read_file(writer.path())).at(1));
  std::set<std::string> layers;
  for (const auto& [key, value] : values)
    if (key.rfind("expert_load/", 0) == 0) layers.insert(key);
  EXPECT_EQ(layers.size(), static_cast<size_t>(kMaxLayerKeys));
  EXPECT_EQ(*layers.begin(), "expert_load/layer_003");
  EXPECT_EQ(*layers.rbegin(), "expert_load/layer_203");
  EXPECT_LE(values.size(), 64u);
  for (int i = 0; i < kMaxAuxKeys; ++i) record.aux["extra" + std::to_string(i)] = 0;
  EXPECT_EQ(message_of([&] { writer.append(record, 0.0); }),
            "TensorBoard: 18 auxiliary losses, at most 16 keys");
}

TEST(TensorBoard, ResumeForgetsLaterSteps) {
  const TemporaryFolder scratch;
  const TensorBoardWriter first(scratch.at("tb"), 0), second(scratch.at("tb"), 60);
  EXPECT_LT(first.path(), second.path());
  const auto events = records_of(read_file(second.path()));
  ASSERT_EQ(events.size(), 2u);
  const Message restart = parse(events[1]);
  EXPECT_EQ(restart.find(2)->second, "61");
  EXPECT_EQ(parse(restart.find(7)->second).find(1)->second, "1");
}

TEST(TensorBoard, FailureIsStorage) {
  const TemporaryFolder scratch;
  write_file(scratch.at("file"), "x");
  try {
    TensorBoardWriter(scratch.at("file"), 0);
    FAIL();
  } catch (const base::Error& caught) {
    EXPECT_EQ(caught.code(), base::ExitCode::Storage);
  }
}

}  // namespace
}  // namespace pleat::report
