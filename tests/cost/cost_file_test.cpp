// Costs that come back as they were written, files that lie, and times carried over to other sizes.
#include "cost/cost_file.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/files.h"
#include "support/refusal.h"

namespace pleat::cost {
namespace {

using testing::refusal;

CostEntry measured(std::string kind, std::vector<int64_t> dims, kernels::Work work, double ns,
                   int64_t seen = 3) {
  return {{std::move(kind), std::move(dims)}, work, ns, ns * 0.875, ns * 1.25, seen};
}

CostFile some_costs() {
  CostFile f;
  f.machine = {"some \"processor\"", "cpu", 4, 2, ""};
  f.config = "tiny";
  f.entries = {measured("linear fwd f32", {8, 16}, {256, 1024.5, 2}, 1.0 / 3 * 1000, 9),
               measured("linear fwd f32", {8, 32}, {512, 2048, 2}, 1e11 / 7),
               measured("zero fwd f32", {0}, {0, 0, 0}, 1)};
  f.links = {{"all_gather", 2, 1024, 1234.5678}, {"all_gather", 4, 1024, 0}};
  f.crowd = {1, 1.1000000000000001, 2.5};
  f.steps = {{"tiny", 1, 0, 5e6, 4.75e6}};
  return f;
}

TEST(CostFile, ComesBackAsItWasWritten) {
  const CostFile f = some_costs();
  const std::string text = to_json(f);
  const CostFile back = costs_from_json(text, "here");
  EXPECT_EQ(to_json(back), text);
  EXPECT_EQ(back.machine, f.machine);
  EXPECT_EQ(back.config, f.config);
  EXPECT_EQ(back.crowd, f.crowd);
  ASSERT_EQ(back.entries.size(), f.entries.size());
  for (size_t i = 0; i < f.entries.size(); ++i) {
    EXPECT_EQ(back.entries[i].key, f.entries[i].key);
    EXPECT_EQ(back.entries[i].work.flops, f.entries[i].work.flops);
    EXPECT_EQ(back.entries[i].work.bytes, f.entries[i].work.bytes);
    EXPECT_EQ(back.entries[i].work.launches, f.entries[i].work.launches);
    EXPECT_EQ(back.entries[i].ns, f.entries[i].ns);
    EXPECT_EQ(back.entries[i].low_ns, f.entries[i].low_ns);
    EXPECT_EQ(back.entries[i].high_ns, f.entries[i].high_ns);
    EXPECT_EQ(back.entries[i].seen, f.entries[i].seen);
  }
  ASSERT_EQ(back.links.size(), 2u);
  EXPECT_EQ(back.links[0].ns, f.links[0].ns);
  ASSERT_EQ(back.steps.size(), 1u);
  EXPECT_EQ(back.steps[0].stages_ns, 4.75e6);

  const testing::TemporaryFolder folder;
  write_costs(folder.at("costs.json"), f);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"costs.json"});
  EXPECT_EQ(to_json(read_costs(folder.at("costs.json"))), text);
}

TEST(CostFile, NoFileIsAnErrorWithItsName) {
  EXPECT_NE(refusal([] { read_costs("/nowhere/costs.json"); }).find("/nowhere/costs.json"),
            std::string::npos);
}

TEST(CostFile, WhatNobodyWroteIsRefusedByName) {
  const std::string good = to_json(some_costs());
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  const struct {
    std::string text, says;
  } cases[] = {
      {"", "not valid JSON"},
      {"[]", "needs an object"},
      {good.substr(0, good.size() / 2), "not valid JSON"},
      {std::string(2000, '['), "here"},
      {changed("pleat costs", "pleat cost"), "\"format\""},
      {changed("\"version\": 1", "\"version\": 2"), "\"version\" is 2"},
      {changed("\"version\": 1", "\"version\": 1.0"), "\"version\""},
      {changed("\"config\": ", "\"konfig\": "), "has no \"config\""},
      {changed("\"crowd\"", "\"more\": 1, \"crowd\""), "\"more\" is not a known key"},
      {changed("\"kind\":\"cpu\"", "\"kind\":\"tpu\""), "\"kind\" is \"tpu\""},
      {changed("\"kind\":\"cpu\"", "\"kind\":\"cuda\""), "\"gpu\""},
      {changed("\"cores\":4", "\"cores\":0"), "\"cores\" is 0"},
      {changed("[1.0,", "[2.0,"), "\"crowd\" begins with 2"},
      {changed("[1.0,1.1", "[1.0,-1.1"), "\"crowd\" is -1.1"},
      {changed("[8,16]", "[8,-16]"), "entry 0: \"dims\" is -16"},
      {changed("[8,16]", "[8,1e3]"), "entry 0: \"dims\""},
      {changed("[8,16]", "[8,99999999999999999999]"), "entry 0: \"dims\""},
      {changed("[8,16]", "\"8\""), "entry 0: \"dims\" is \"8\", needs a list"},
      {changed("\"flops\":256.0", "\"flops\":null"), "entry 0: \"flops\" is null"},
      {changed("\"flops\":256.0", "\"flops\":1e999"), "here"},
      {changed("\"ns\":1.0", "\"ns\":0.0"), "\"ns\" is 0.0"},
      {changed("\"high_ns\":1.25", "\"high_ns\":1e13"), "\"high_ns\" is 10000000000000.0"},
      {changed("linear fwd", "linear\\u001b[2J fwd"), "entry 0: \"kind\""},
      {changed("some \\\"processor", "some \\nprocessor"), "\"name\""},
      {changed("\"config\": \"tiny", "\"config\": \"ti\\u202eny"), "\"config\""},
      {changed("2.5]", "1e5]"), "\"crowd\""},
      {changed("\"seen\":9", "\"seen\":0"), "entry 0: \"seen\" is 0"},
      {changed("\"seen\":9", "\"seen\":true"), "entry 0: \"seen\" is true"},
      {changed("[8,32]", "[8,16]"), "entry 1: \"kind\" and \"dims\" must come after"},
      {changed("\"low_ns\":0.875", "\"low_ns\":1.5"), "entry 2: \"low_ns\" is 1.5"},
      {changed("\"ranks\":4", "\"ranks\":2"), "link 1: is there twice"},
      {changed("\"operation\":\"all_gather\"", "\"operation\":7"), "link 0: \"operation\" is 7"},
  };
  for (const auto& c : cases) {
    const std::string message = refusal([&] { costs_from_json(c.text, "here"); });
    EXPECT_TRUE(message.starts_with("here")) << message;
    EXPECT_NE(message.find(c.says), std::string::npos) << message << "\nneeded: " << c.says;
  }
  const testing::TemporaryFolder folder;
  testing::write_file(folder.at("large"), std::string(static_cast<size_t>(kMaxCostFileBytes) + 1, ' '));
  EXPECT_NE(refusal([&] { read_costs(folder.at("large")); }).find("large"), std::string::npos);
}

// Whatever one byte becomes, there is a file or an error that says where.
TEST(CostFile, EveryDamagedByteIsAFileOrAnError) {
  const std::string good = to_json(some_costs());
  int files = 0, errors = 0;
  for (size_t at = 0; at < good.size(); ++at)
    for (const char byte : {'\0', '"', '-', '9', 'e', '{', ']', ',', '\xff'}) {
      std::string text = good;
      text[at] = byte;
      const std::string message = testing::message_of([&] {
        const CostFile file = costs_from_json(text, "here");
        EXPECT_EQ(to_json(costs_from_json(to_json(file), "again")), to_json(file));
      });
      (message.empty() ? files : errors)++;
      if (!message.empty()) {
        EXPECT_TRUE(message.starts_with("here")) << message;
      }
    }
  EXPECT_GT(files, 100);
  EXPECT_GT(errors, 1000);
}

TEST(CostFile, JoinedFilesKeepWhatWasMeasuredMoreOften) {
  CostFile a = some_costs(), b = some_costs();
  b.config = "other";
  b.entries = {measured("linear fwd f32", {8, 16}, {256, 1024.5, 2}, 50, 4),
               measured("linear fwd f32", {8, 32}, {512, 2048, 2}, 60, 4),
               measured("swiglu fwd f32", {4}, {0, 32, 1}, 70, 1)};
  b.crowd = {1, 1, 1, 1};
  b.steps[0].config = "other";
  const CostFile both[] = {a, b};
  const CostFile joined = join(both);
  EXPECT_EQ(joined.config, "tiny, other");
  ASSERT_EQ(joined.entries.size(), 4u);
  EXPECT_EQ(joined.entries[0].ns, a.entries[0].ns) << "9 times against 4";
  EXPECT_EQ(joined.entries[1].ns, 60) << "3 times against 4";
  EXPECT_EQ(joined.entries[2].key.kind, "swiglu fwd f32");
  EXPECT_EQ(joined.links.size(), 2u);
  EXPECT_EQ(joined.crowd.size(), 4u);
  EXPECT_EQ(joined.steps.size(), 2u);
  costs_from_json(to_json(joined), "joined");  // is one that can be read

  b.machine.name = "another";
  const CostFile strangers[] = {a, b};
  const std::string message = refusal([&] { join(strangers); });
  EXPECT_NE(message.find("processor"), std::string::npos) << message;
  EXPECT_NE(message.find("another"), std::string::npos) << message;
}

const Formula kByBytes = [](const kernels::Work& w, const std::string&) { return w.bytes; };

TEST(CostTable, WhatWasMeasuredIsTakenAsItIs) {
  const CostTable table(some_costs().entries);
  EXPECT_EQ(table.size(), 3u);
  EXPECT_EQ(table.ns({"linear fwd f32", {8, 16}}, {1, 1, 1}, kByBytes), some_costs().entries[0].ns);
  EXPECT_TRUE(table.find({"zero fwd f32", {0}}));
  EXPECT_FALSE(table.find({"zero fwd f32", {1}}));
  EXPECT_FALSE(table.ns({"linear dgrad f32", {8, 16}}, {1, 1, 1}, kByBytes)) << "no such kind";
  EXPECT_FALSE(table.ns({"linear fwd f32", {8, 16, 1}}, {1, 1, 1}, kByBytes)) << "no such number of dims";
  EXPECT_FALSE(CostTable().ns({"linear fwd f32", {8, 16}}, {1, 1, 1}, kByBytes));
}

// ns = 3 * bytes^1.5, measured at powers of four; between two of them, as far from either, their logarithms meet half
// way, so a power law comes out as it is.
TEST(CostTable, APowerLawIsFollowedBetweenNeighbours) {
  const auto law = [](double bytes) { return 3 * std::pow(bytes, 1.5); };
  std::vector<CostEntry> entries;
  for (const int64_t n : {64, 256, 1024, 4096})
    entries.push_back(measured("k", {n}, {0, double(n), 1}, law(double(n))));
  const CostTable table(entries);
  const auto asked = table.ns({"k", {512}}, {0, 512, 1}, kByBytes);
  ASSERT_TRUE(asked);
  EXPECT_NEAR(*asked, law(512), 1e-9 * law(512));
  // Outside, the nearest counts most: the error stays below that of taking the farthest for the formula's.
  const auto beyond = table.ns({"k", {8192}}, {0, 8192, 1}, kByBytes);
  ASSERT_TRUE(beyond);
  EXPECT_GT(*beyond, 8192 * law(1024) / 1024);
  EXPECT_LT(*beyond, law(8192));
}

TEST(CostTable, AFormulaThatErrsByOneFactorIsCorrectedAnywhere) {
  std::vector<CostEntry> entries;
  for (const int64_t a : {2, 8})
    for (const int64_t b : {3, 48})
      entries.push_back(measured("k", {a, b}, {0, double(a * b * 100), 1}, double(a * b * 700)));
  entries.push_back(measured("k", {2}, {0, 1, 1}, 1e9));           // another number of dims
  entries.push_back(measured("k", {9000, 9000}, {0, 1, 1}, 1e9));  // the fifth nearest
  const auto asked = CostTable(entries).ns({"k", {5, 11}}, {0, 5500, 1}, kByBytes);
  ASSERT_TRUE(asked);
  EXPECT_NEAR(*asked, 7 * 5500, 1e-6);
}

TEST(CostTable, NothingIsDividedByZero) {
  const CostTable table({measured("k", {0}, {0, 0, 0}, 40)});
  const auto asked = table.ns({"k", {1}}, {0, 0, 0}, kByBytes);
  ASSERT_TRUE(asked);
  EXPECT_NEAR(*asked, 40, 1e-9);
}

}  // namespace
}  // namespace pleat::cost
