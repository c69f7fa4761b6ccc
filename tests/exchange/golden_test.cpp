// Every family against values another implementation computed (tests/golden/README.md): logits, hidden
// states, loss and gradients in float32, and our own float32 against our float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <span>

#include "exchange/exchange_support.h"
#include "exchange/golden_support.h"
#include "exchange/probe.h"
#include "safetensors/writer.h"

namespace pleat::exchange::testing {
namespace {

class Golden : public ::testing::TestWithParam<std::string> {
 protected:
  std::string probed(const std::string& dtype, bool routing = false, const std::string& from = "") const {
    ProbeOptions o;
    o.model_folder = golden_folder(GetParam());
    o.tokens_path = o.model_folder + "/golden.safetensors";
    o.out_path = folder_.path() + "/" + dtype + (from.empty() ? "" : "-replayed") + ".safetensors";
    o.gradients = true;
    o.routing = routing;
    o.routing_from = from;
    o.dtype = dtype;
    o.threads = 2;
    probe(o);
    return o.out_path;
  }
  TemporaryFolder folder_;
};

TEST_P(Golden, EqualsTheOtherImplementation) {
  const safetensors::File ours = safetensors::File::open(probed("float32"));
  const safetensors::File theirs = safetensors::File::open(golden_folder(GetParam()) + "/golden.safetensors");
  int num_gradients = 0, num_hidden = 0;
  for (const safetensors::TensorInfo& info : theirs.tensors()) {
    const std::string name(info.name);
    if (name == "input_ids") continue;
    ASSERT_TRUE(ours.find(name)) << name;
    EXPECT_EQ(ours.at(name).shape, info.shape) << name;
    const std::vector<double> a = numbers(ours, name), b = numbers(theirs, name);
    if (name.starts_with("grad.")) {
      EXPECT_LE(relative_difference(a, b), 1e-4) << name;
      ++num_gradients;
    } else {
      EXPECT_LE(largest_difference(a, b), 1e-5) << name;
      num_hidden += name.starts_with("hidden.");
    }
  }
  EXPECT_GT(num_gradients, 10);
  EXPECT_GE(num_hidden, 3);
  for (const safetensors::TensorInfo& info : ours.tensors())
    if (info.name.starts_with("grad.")) {
      EXPECT_TRUE(theirs.find(info.name)) << info.name;
    }
}

TEST_P(Golden, SingleEqualsDouble) {
  const safetensors::File single = safetensors::File::open(probed("float32"));
  const safetensors::File wide = safetensors::File::open(probed("float64"));
  ASSERT_EQ(single.tensors().size(), wide.tensors().size());
  for (const safetensors::TensorInfo& info : single.tensors()) {
    const std::string name(info.name);
    const std::vector<double> a = numbers(single, name), b = numbers(wide, name);
    EXPECT_LE(relative_difference(a, b), name.starts_with("grad.") ? 1e-5 : 1e-6) << name;
  }
}

// Decisions given back change nothing; others are obeyed, with the model's own probabilities.
TEST_P(Golden, ReplayedRoutingIsFollowed) {
  const std::string recorded = probed("float32", true);
  const safetensors::File free = safetensors::File::open(recorded);
  std::vector<std::string> routings;
  for (const safetensors::TensorInfo& info : free.tensors())
    if (info.name.starts_with("routing.")) routings.emplace_back(info.name);
  const bool has_experts = GetParam() != "llama" && GetParam() != "qwen3";
  ASSERT_EQ(routings.empty(), !has_experts);
  const safetensors::File same = safetensors::File::open(probed("float32", true, recorded));
  for (const safetensors::TensorInfo& info : free.tensors()) {
    const std::string name(info.name);
    if (name.starts_with("routing."))
      EXPECT_EQ(integers(same, name), integers(free, name)) << name;
    else
      EXPECT_EQ(numbers(same, name), numbers(free, name)) << name;
  }
  if (!has_experts) return;

  std::vector<safetensors::TensorSpec> specs;
  for (const std::string& name : routings)
    specs.push_back({name, safetensors::ElementType::I32, free.at(name).shape});
  const std::string other = folder_.path() + "/other.safetensors";
  safetensors::Writer writer(other, specs);
  std::map<std::string, std::vector<int32_t>> first_experts;
  for (const safetensors::TensorSpec& spec : specs) {
    std::vector<int32_t>& chosen = first_experts[spec.name];
    const int64_t n = spec.shape[0] * spec.shape[1], k = spec.shape[2];
    for (int64_t i = 0; i < n * k; ++i) chosen.push_back(static_cast<int32_t>(i % k));
    writer.append(spec.name, std::as_bytes(std::span(chosen)));
  }
  writer.finish();
  const safetensors::File forced = safetensors::File::open(probed("float32", true, other));
  for (const auto& [name, chosen] : first_experts) EXPECT_EQ(integers(forced, name), chosen) << name;
  EXPECT_GT(relative_difference(numbers(forced, "logits"), numbers(free, "logits")), 1e-3);
}

// What bf16 is held to on a GPU (tests/cuda/golden_test.cpp): a run's own choices are those of its logits, up to what
// the logits are off. And the judge sees choices that are not.
TEST_P(Golden, ChoicesAreThoseOfTheLogits) {
  const std::string chosen = probed("float32", true);
  const safetensors::File single = safetensors::File::open(chosen),
                          wide = safetensors::File::open(probed("float64", true, chosen));
  const JudgedRouting judged = judge_routing(golden_folder(GetParam()), single, wide);
  EXPECT_EQ(judged.fault, "");
  EXPECT_LE(judged.logits, 1e-6);
  EXPECT_LE(judged.num_other, judged.num_close);
  if (GetParam() == "llama" || GetParam() == "qwen3") return;
  EXPECT_GT(judged.num_choices, 30);
  EXPECT_LT(judged.num_close, judged.num_choices / 10);

  // One token of the last layer goes where its logits are least.
  std::vector<safetensors::TensorSpec> specs;
  for (const safetensors::TensorInfo& info : single.tensors())
    if (info.name.starts_with("routing."))
      specs.push_back({std::string(info.name), safetensors::ElementType::I32, info.shape});
  const int64_t k = specs.back().shape[2];
  const std::string wrong = folder_.path() + "/wrong.safetensors";
  safetensors::Writer writer(wrong, specs);
  for (const safetensors::TensorSpec& spec : specs) {
    std::vector<int32_t> experts = integers(single, spec.name);
    if (spec.name == specs.back().name) {
      const std::vector<double> logits = numbers(single, "router_logits" + spec.name.substr(7));
      const auto num_experts = static_cast<int64_t>(logits.size()) * k / static_cast<int64_t>(experts.size());
      const auto least = std::min_element(logits.begin(), logits.begin() + num_experts) - logits.begin();
      experts[0] = static_cast<int32_t>(least);
      std::sort(experts.begin(), experts.begin() + k);
      ASSERT_TRUE(std::unique(experts.begin(), experts.begin() + k) == experts.begin() + k);
    }
    writer.append(spec.name, std::as_bytes(std::span(experts)));
  }
  writer.finish();
  const std::string followed = probed("float32", true, wrong);
  const JudgedRouting found = judge_routing(golden_folder(GetParam()), safetensors::File::open(followed),
                                            safetensors::File::open(probed("float64", true, wrong)));
  EXPECT_NE(found.fault.find("token 0"), std::string::npos) << found.fault;
  EXPECT_EQ(found.num_other, judged.num_other + 1);
}

INSTANTIATE_TEST_SUITE_P(Families, Golden, ::testing::ValuesIn(golden_families()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace pleat::exchange::testing
