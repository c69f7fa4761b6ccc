// Every model family through the GPU against values another implementation computed (tests/golden/README.md).
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <span>

#include "cuda/cuda_support.h"
#include "exchange/probe.h"
#include "safetensors/convert.h"
#include "safetensors/file.h"

namespace pleat::exchange {
namespace {

std::vector<double> numbers(const safetensors::File& file, const std::string& name) {
  const safetensors::TensorInfo& info = file.at(name);
  std::vector<std::byte> raw(static_cast<size_t>(info.num_bytes()));
  file.read(name, raw);
  std::vector<double> out(static_cast<size_t>(info.num_elements()));
  safetensors::decode(info.type, raw, std::span<double>(out));
  return out;
}

// ||a - b|| / ||b||
double relative(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    difference += (a[i] - b[i]) * (a[i] - b[i]), norm += b[i] * b[i];
  return std::sqrt(difference / (norm > 0 ? norm : 1));
}

class CudaGolden : public ::testing::TestWithParam<std::string> {
 protected:
  void compare(const std::string& dtype, double logits, double gradients) {
    ProbeOptions o;
    o.model_folder = std::string(PLEAT_SOURCE_DIR) + "/tests/golden/" + GetParam();
    o.tokens_path = o.model_folder + "/golden.safetensors";
    o.out_path = (std::filesystem::temp_directory_path() / ("pleat_cuda_" + GetParam() + dtype)).string();
    o.gradients = true;
    o.dtype = dtype;
    o.device = "cuda";
    o.threads = 2;
    probe(o);
    const safetensors::File ours = safetensors::File::open(o.out_path),
                            theirs = safetensors::File::open(o.tokens_path);
    EXPECT_LE(relative(numbers(ours, "logits"), numbers(theirs, "logits")), logits);
    double worst = 0;
    std::string where;
    for (const std::string_view name : theirs.names())
      if (name.starts_with("grad.")) {
        const double d = relative(numbers(ours, std::string(name)), numbers(theirs, std::string(name)));
        if (d > worst) worst = d, where = name;
      }
    EXPECT_LE(worst, gradients) << where;
    RecordProperty("logits", std::to_string(relative(numbers(ours, "logits"), numbers(theirs, "logits"))));
    if (std::getenv("PLEAT_SHOW"))
      printf("%-14s %-9s logits %.2e, worst gradient %.2e %s\n", GetParam().c_str(), dtype.c_str(),
             relative(numbers(ours, "logits"), numbers(theirs, "logits")), worst, where.c_str());
    std::filesystem::remove(o.out_path);
  }
};

TEST_P(CudaGolden, Float32) {
  PLEAT_NEEDS_GPU();
  compare("float32", 1e-4, 1e-3);
}

// Gradients only as a sign of life: near a tie, a rounded logit sends a token to another expert.
TEST_P(CudaGolden, Bfloat16) {
  PLEAT_NEEDS_GPU();
  compare("bfloat16", 2e-2, 0.5);
}

INSTANTIATE_TEST_SUITE_P(Families, CudaGolden,
                         ::testing::Values("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2",
                                           "deepseek_v3", "gpt_oss", "llama", "qwen3"));

}  // namespace
}  // namespace pleat::exchange
