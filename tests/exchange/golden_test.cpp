// Every family against values another implementation computed (tests/golden/README.md): logits, hidden
// states, loss and gradients in float32, and our own float32 against our float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "exchange/exchange_support.h"
#include "exchange/probe.h"
#include "safetensors/convert.h"
#include "safetensors/file.h"

namespace pleat::exchange::testing {
namespace {

std::vector<double> numbers(const safetensors::File& file, const std::string& name) {
  const safetensors::TensorInfo& info = file.at(name);
  std::vector<std::byte> raw(static_cast<size_t>(info.num_bytes()));
  file.read(name, raw);
  std::vector<double> out(static_cast<size_t>(info.num_elements()));
  safetensors::decode(info.type, raw, std::span<double>(out));
  return out;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (!(std::abs(a[i] - b[i]) <= worst)) worst = std::abs(a[i] - b[i]);  // a NaN stays
    if (std::isnan(worst)) return worst;
  }
  return worst;
}

// ||a - b|| / ||b||; absolute where b is all zero.
double relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    difference += (a[i] - b[i]) * (a[i] - b[i]), norm += b[i] * b[i];
  return std::sqrt(difference / (norm > 0 ? norm : 1));
}

class Golden : public ::testing::TestWithParam<std::string> {
 protected:
  std::string probed(const std::string& dtype) const {
    ProbeOptions o;
    o.model_folder = golden_folder(GetParam());
    o.tokens_path = o.model_folder + "/golden.safetensors";
    o.out_path = folder_.path() + "/" + dtype + ".safetensors";
    o.gradients = true;
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

INSTANTIATE_TEST_SUITE_P(Families, Golden, ::testing::ValuesIn(golden_families()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace pleat::exchange::testing
