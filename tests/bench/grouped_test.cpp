// Requests for grouped products, and the cases they become.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "bench/grouped_request.h"
#include "support/refusal.h"

namespace pleat::bench {
namespace {

std::string refusal(const std::string& line) {
  return testing::message_of([&] { parse_grouped_request(line); });
}

TEST(GroupedRequest, ProductsAndRuns) {
  EXPECT_EQ(parse_grouped_request(R"({"run": 3})").runs, 3);
  EXPECT_FALSE(parse_grouped_request(R"({"run": 3})").product);
  const auto request =
      parse_grouped_request(R"({"direction": "dgrad", "in": 16, "out": 24, "rows": [3, 0, 7]})");
  ASSERT_TRUE(request.product);
  EXPECT_EQ(request.product->width_in, 16);
  EXPECT_EQ(request.product->width_out, 24);
  EXPECT_EQ(request.product->rows_of, (std::vector<int64_t>{3, 0, 7}));
  EXPECT_EQ(request.product->phase, program::Phase::BackwardInput);
}

TEST(GroupedRequest, RefusesWhatItCannotRead) {
  for (const auto& [line, word] : {
           std::pair{"", "JSON"},
           {"[1]", "JSON"},
           {R"({"run": 0})", "run is 0"},
           {R"({"run": 1.5})", "run must be an integer"},
           {R"({"run": 1, "in": 2})", "unknown key 'in'"},
           {R"({"direction": "fwd", "in": 16, "rows": [3]})", "'out' is missing"},
           {R"({"direction": "back", "in": 16, "out": 8, "rows": [3]})", "\"back\""},
           {R"({"direction": "fwd", "in": 0, "out": 8, "rows": [3]})", "in is 0"},
           {R"({"direction": "fwd", "in": 16, "out": 8, "rows": []})", "rows must be a list"},
           {R"({"direction": "fwd", "in": 16, "out": 8, "rows": [-1]})", "rows is -1"},
           {R"({"direction": "fwd", "in": 16, "out": 8, "rows": [0, 0]})", "sum of rows is 0"},
       })
    EXPECT_NE(refusal(line).find(word), std::string::npos) << line << ": " << refusal(line);
}

TEST(GroupedCase, HasTheRowsThatWereAsked) {
  using program::Phase;
  for (const Phase phase : {Phase::Forward, Phase::BackwardInput, Phase::BackwardWeight}) {
    const KernelCase c = grouped_case({"case", 16, 24, {3, 0, 7}, phase});
    EXPECT_EQ(c.flops, 2.0 * 10 * 16 * 24);
    ASSERT_EQ(c.arguments.size(), 6u);
    EXPECT_EQ(c.arguments[2].numbers, (std::vector<double>{0, 3, 3, 10}));
    EXPECT_EQ(c.arguments[2].shape, (std::vector<int64_t>{4}));
    const Argument& result = c.arguments[phase == Phase::Forward ? 5 : 4];
    EXPECT_EQ(result.access, program::Access::Write);
    EXPECT_EQ(result.shape, phase == Phase::Forward         ? (std::vector<int64_t>{10, 24})
                            : phase == Phase::BackwardInput ? (std::vector<int64_t>{10, 16})
                                                            : (std::vector<int64_t>{3, 24, 16}));
  }
}

TEST(KernelCases, LoadsAddUpToTheRoutedRows) {
  size_t seen = 0;
  for (const KernelCase& c : kernel_cases("grouped")) {
    const std::vector<double>& at = c.arguments[2].numbers;
    EXPECT_EQ(at.back(), double(c.arguments[0].shape[0])) << c.name;
    double most = 0;
    for (size_t e = 0; e + 1 < at.size(); ++e) {
      EXPECT_GE(at[e + 1], at[e]) << c.name;
      most = std::max(most, at[e + 1] - at[e]);
    }
    const double mean = at.back() / double(at.size() - 1);
    if (c.name.find(" even ") != std::string::npos) {
      EXPECT_EQ(most, mean) << c.name;
    }
    if (c.name.find(" skewed ") != std::string::npos) {
      EXPECT_NEAR(most, 4 * mean, 1) << c.name;
    }
    ++seen;
  }
  EXPECT_GT(seen, 50u);
}

}  // namespace
}  // namespace pleat::bench
