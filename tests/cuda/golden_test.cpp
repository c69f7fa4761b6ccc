// Every model family through the GPU against values another implementation computed (tests/golden/README.md).
#include <cstdlib>

#include "cuda/cuda_support.h"
#include "exchange/exchange_support.h"
#include "exchange/golden_support.h"
#include "exchange/probe.h"

namespace pleat::exchange::testing {
namespace {

// Norm-wise. A number stored in bf16 is off by at most u = 2^-8 of itself, evenly spread: u / sqrt(3) in the mean.
// A branch (attention, experts) stores at most five numbers for each of its two products and takes two rounded
// weights: 12 roundings, which reach the residual stream as they are, whatever the number of layers: each is as large
// a part of it as its branch is. The stream is stored twice a layer, and half of such errors were made when it was
// shorter: 1 for each layer. Final norm, head and its weight: 3. All logits together, twice what is to be expected:
// 2 sqrt(12 + 3 + 3) u / sqrt(3) for the three layers of the deepest of these models.
constexpr double kNarrowLogits = 2e-2;
// docs/numerics.md section 9: 3 sqrt(36) u for each unit of conditioning, 0.07; the worst of all parameters.
constexpr double kNarrowGradients = 0.1;

class CudaGolden : public ::testing::TestWithParam<std::string> {
 protected:
  safetensors::File theirs() const {
    return safetensors::File::open(golden_folder(GetParam()) + "/golden.safetensors");
  }

  std::string path(const std::string& name) const { return folder_.path() + "/" + name + ".safetensors"; }

  safetensors::File probed(const std::string& name, const std::string& dtype,
                           const std::string& routing_from = "") const {
    ProbeOptions o;
    o.model_folder = golden_folder(GetParam());
    o.tokens_path = o.model_folder + "/golden.safetensors";
    o.out_path = path(name);
    o.gradients = true;
    o.routing = true;
    o.routing_from = routing_from;
    o.dtype = dtype;
    o.device = "cuda";
    o.threads = 2;
    probe(o);
    return safetensors::File::open(o.out_path);
  }

  void compare(const safetensors::File& ours, double logits, double gradients) const {
    compare(ours, theirs(), logits, gradients);
  }

  // All positions, all gradients.
  void compare(const safetensors::File& ours, const safetensors::File& golden, double logits,
               double gradients) const {
    const double off = relative_difference(numbers(ours, "logits"), numbers(golden, "logits"));
    EXPECT_LE(off, logits);
    double worst = 0;
    int num_gradients = 0;
    std::string where;
    for (const safetensors::TensorInfo& info : golden.tensors())
      if (info.name.starts_with("grad.")) {
        const double d = relative_difference(numbers(ours, info.name), numbers(golden, info.name));
        ++num_gradients;
        if (!(d <= worst)) worst = d, where = info.name;  // a NaN stays
      }
    EXPECT_LE(worst, gradients) << where;
    EXPECT_GT(num_gradients, 10);
    show(fmt::format("logits {:.2e}, worst gradient {:.2e} {}", off, worst, where));
  }

  void show(const std::string& text) const {
    const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    if (std::getenv("PLEAT_SHOW")) printf("%-60s %s\n", test.c_str(), text.c_str());
  }

  TemporaryFolder folder_;
};

TEST_P(CudaGolden, Float32) {
  PLEAT_NEEDS_GPU();
  compare(probed("wide", "float32"), 1e-4, 1e-3);
}

// Tokens go where float32 sends them, with the probabilities of bf16: what is left is rounding alone.
TEST_P(CudaGolden, Bfloat16WithTheRoutingOfFloat32) {
  PLEAT_NEEDS_GPU();
  probed("wide", "float32");
  compare(probed("replayed", "bfloat16", path("wide")), kNarrowLogits, kNarrowGradients);
}

// The experts bf16 chose itself, given to float32: nothing is left out, every position and every gradient is compared.
// And where the two would have chosen differently, the logits are so close that their roundings explain it.
TEST_P(CudaGolden, Bfloat16WithItsOwnRouting) {
  PLEAT_NEEDS_GPU();
  const safetensors::File narrow = probed("narrow", "bfloat16"),
                          wide = probed("following", "float32", path("narrow"));
  compare(narrow, wide, kNarrowLogits, kNarrowGradients);
  const JudgedRouting judged = judge_routing(golden_folder(GetParam()), narrow, wide);
  show(fmt::format("router logits {:.2e}; {} of {} choices differ, {} are close", judged.logits,
                   judged.num_other, judged.num_choices, judged.num_close));
  EXPECT_EQ(judged.fault, "");
  EXPECT_LE(judged.logits, kNarrowLogits) << "the way to a router is shorter than that to the logits";
  EXPECT_LE(judged.num_other, judged.num_close);
}

INSTANTIATE_TEST_SUITE_P(Families, CudaGolden, ::testing::ValuesIn(golden_families()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace pleat::exchange::testing
