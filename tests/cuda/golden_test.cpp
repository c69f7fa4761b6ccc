// Every model family through the GPU against values another implementation computed (tests/golden/README.md).
#include <cstdlib>

#include "cuda/cuda_support.h"
#include "exchange/exchange_support.h"
#include "exchange/golden_support.h"
#include "exchange/probe.h"

namespace pleat::exchange::testing {
namespace {

constexpr double kNarrowLogits = 2e-2;
constexpr double kNarrowGradients = 0.1;  // norm-wise, the worst of all parameters

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
    const safetensors::File golden = theirs();
    const double off = relative_difference(numbers(ours, "logits"), numbers(golden, "logits"));
    EXPECT_LE(off, logits);
    double worst = 0;
    std::string where;
    for (const safetensors::TensorInfo& info : golden.tensors())
      if (info.name.starts_with("grad.")) {
        const double d = relative_difference(numbers(ours, info.name), numbers(golden, info.name));
        if (d > worst) worst = d, where = info.name;
      }
    EXPECT_LE(worst, gradients) << where;
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

// Near a tie a rounded logit sends a token to another expert. A position is compared unless such a token can
// have reached it: itself, in any layer; an earlier one of its sequence, in any layer but the last, whose
// outputs no attention reads.
TEST_P(CudaGolden, Bfloat16WhereverRoutingAgrees) {
  PLEAT_NEEDS_GPU();
  const safetensors::File wide = probed("wide", "float32"), narrow = probed("narrow", "bfloat16"),
                          golden = theirs();
  const std::vector<int64_t> shape = golden.at("logits").shape;  // [B, S, V]
  const int64_t batch = shape[0], length = shape[1], vocab = shape[2], rows = batch * length;
  int64_t num_layers = -1;  // hidden.0 is the embedding
  for (const safetensors::TensorInfo& info : golden.tensors()) num_layers += info.name.starts_with("hidden.");
  std::vector<bool> differs(static_cast<size_t>(rows)), reaches_later(static_cast<size_t>(rows));
  int64_t num_choices = 0, num_other = 0;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const std::string name = fmt::format("routing.{}", layer);
    if (!wide.find(name)) continue;  // a dense layer
    const std::vector<int32_t> a = integers(wide, name), b = integers(narrow, name);
    ASSERT_EQ(a.size(), b.size());
    const int64_t top_k = wide.at(name).shape[2];
    for (int64_t t = 0; t < rows; ++t) {
      const bool other =
          !std::equal(a.begin() + t * top_k, a.begin() + (t + 1) * top_k, b.begin() + t * top_k);
      ++num_choices, num_other += other;
      if (other) differs[size_t(t)] = true;
      if (other && layer + 1 < num_layers) reaches_later[size_t(t)] = true;
    }
  }
  const std::vector<double> ours = numbers(narrow, "logits"), meant = numbers(golden, "logits");
  std::vector<double> ours_kept, meant_kept;
  int64_t num_kept = 0;
  for (int64_t b = 0; b < batch; ++b) {
    bool reached = false;
    for (int64_t t = b * length; t < (b + 1) * length; ++t) {
      if (!reached && !differs[size_t(t)]) {
        ours_kept.insert(ours_kept.end(), ours.begin() + t * vocab, ours.begin() + (t + 1) * vocab);
        meant_kept.insert(meant_kept.end(), meant.begin() + t * vocab, meant.begin() + (t + 1) * vocab);
        ++num_kept;
      }
      reached = reached || reaches_later[size_t(t)];
    }
  }
  const double off = relative_difference(ours_kept, meant_kept);
  show(fmt::format(
      "{} of {} choices differ ({:.2f} %); {} of {} positions out of reach: logits {:.2e}; all: {:.2e}",
      num_other, num_choices,
      100.0 * static_cast<double>(num_other) / static_cast<double>(std::max<int64_t>(num_choices, 1)),
      num_kept, rows, off, relative_difference(ours, meant)));
  EXPECT_GT(num_kept, 0) << "nothing is left to compare";
  EXPECT_LE(off, kNarrowLogits);
}

INSTANTIATE_TEST_SUITE_P(Families, CudaGolden, ::testing::ValuesIn(golden_families()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace pleat::exchange::testing
