#include "cuda/cuda_support.h"

#include <cmath>
#include <limits>

#include "device/cuda/cuda.h"
#include "kernels/optimizer/optimizer_cuda.h"

namespace pleat::kernels::testing {
namespace {

using program::AttrSet;
using program::KernelKind;
using program::Phase;
using tensor::Dtype;

const AttrSet kAdam{{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}, {"lr_mult", 0.5}};

Tensor positive(Dtype type, int64_t count, uint64_t seed) {
  Tensor t = Tensor::normal(type, {count}, seed, 0.1);
  for (int64_t i = 0; i < count; ++i) t.set(i, t.at(i) * t.at(i) + 1e-3);
  return t;
}

class CudaOptimizer : public ::testing::TestWithParam<Dtype> {};

TEST_P(CudaOptimizer, CopyAndSumAgreeWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (const int count : {1, 7, 33, 4096, 70001}) {
    Tensor x = Tensor::normal(type, {count}, 1), y = Tensor::nan(type, {count});
    expect_agrees(KernelKind::copy, Phase::Forward, {in(x), out(y)}, {}, {});
    Tensor sum = Tensor::normal(type, {count}, 2);
    expect_agrees(KernelKind::add_grad, Phase::BackwardWeight, {in(x), add(sum)}, {}, bound(type));
  }
}

TEST_P(CudaOptimizer, GradNormAgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (const int count : {1, 33, 65536, 65537, 200003}) {
    Tensor g = Tensor::normal(type, {count}, 1), parts = Tensor::nan(Dtype::F64, {(count + 65535) / 65536});
    expect_agrees(KernelKind::grad_norm, Phase::Update, {in(g), none(), out(parts)}, {}, {1e-12, 1e-12});
  }
  // Pieces of 70001 of a tensor of 200003: unaligned starts, padding at the end.
  for (const int place : {0, 1, 2, 3}) {
    Tensor g = Tensor::normal(type, {70001}, 1), parts = Tensor::nan(Dtype::F64, {4});
    Tensor coords = Tensor::zeros(Dtype::I64, {program::kNumGroups});
    coords.set(5, place);
    expect_agrees(KernelKind::grad_norm, Phase::Update, {in(g), in(coords), out(parts)},
                  {{"group", 5}, {"elements", 200003}, {"shard", 70001}}, {1e-12, 1e-12});
  }
}

TEST(CudaClip, AgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  for (const double clip : {0.0, 1.0, 1e6})
    for (const int bad : {0, 1, 2, 3}) {
      Tensor parts = positive(Dtype::F64, 3000, 1), loss = Tensor::of(Dtype::F64, {2}, {3, 100});
      Tensor overflow = Tensor::zeros(Dtype::I64, {2});
      if (bad == 1) parts.set(2999, std::numeric_limits<double>::infinity());
      if (bad == 2) loss.set(0, std::numeric_limits<double>::infinity());
      if (bad == 3) overflow.set(1, 12);
      Tensor scale = Tensor::nan(Dtype::F64, {2}), commit = Tensor::nan(Dtype::I32, {1});
      expect_agrees(KernelKind::clip, Phase::Update,
                    {in(parts), in(loss), bad == 3 ? in(overflow) : none(), out(scale), out(commit)},
                    {{"clip", clip}}, {1e-12, 1e-12});
      EXPECT_EQ(commit.at(0), bad == 0);
    }
}

TEST_P(CudaOptimizer, AdamwAgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (const int count : {1, 7, 33, 4096, 70001})
    for (const Dtype moment : {Dtype::F32, Dtype::BF16})
      for (const int commit_value : {0, 1}) {
        Tensor g = Tensor::normal(type, {count}, 1), hyper = Tensor::of(Dtype::F64, {4}, {1e-2, 17, 0, 0});
        Tensor scale = Tensor::of(Dtype::F64, {2}, {3, 0.75});
        Tensor commit = Tensor::of(Dtype::I32, {1}, {static_cast<double>(commit_value)});
        Tensor w = Tensor::normal(Dtype::F32, {count}, 2), m = Tensor::normal(moment, {count}, 3, 0.1);
        Tensor v = positive(moment, count, 4);
        expect_agrees(KernelKind::adamw, Phase::Update,
                      {in(g), in(hyper), in(scale), in(commit), none(), add(w), add(m), add(v)}, kAdam,
                      bound(moment, 4));
      }
}

TEST_P(CudaOptimizer, AdamwOfAPieceAgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  for (const int shard : {64, 333})
    for (const int place : {0, 1, 2}) {
      Tensor g = Tensor::normal(GetParam(), {shard}, 1), hyper = Tensor::of(Dtype::F64, {4}, {1e-2, 1, 0, 0});
      Tensor scale = Tensor::of(Dtype::F64, {2}, {3, 1}), commit = Tensor::of(Dtype::I32, {1}, {1});
      Tensor w = Tensor::normal(Dtype::F32, {2 * shard + 5}, 2), m = Tensor::normal(Dtype::F32, {shard}, 3);
      Tensor v = positive(Dtype::F32, shard, 4), coords = Tensor::zeros(Dtype::I64, {program::kNumGroups});
      coords.set(0, place);
      AttrSet attrs = kAdam;
      attrs.push_back({"group", 0});
      attrs.push_back({"shard", static_cast<double>(shard)});
      expect_agrees(KernelKind::adamw, Phase::Update,
                    {in(g), in(hyper), in(scale), in(commit), in(coords), add(w), add(m), add(v)}, attrs,
                    bound(Dtype::F32, 4));
    }
}

TEST(CudaRoundShare, RoundsToTheNearest) {
  PLEAT_NEEDS_GPU();
  for (const int count : {1, 7, 4096, 70001}) {
    Tensor x = Tensor::normal(Dtype::F32, {count}, 1), w = Tensor::zeros(Dtype::BF16, {count});
    call_cuda(KernelKind::round_share, Phase::Update, {in(x), none(), add(w)});
    EXPECT_EQ(w.numbers(), Tensor::of(Dtype::BF16, {count}, x.numbers()).numbers());
  }
  Tensor x = Tensor::normal(Dtype::F32, {50}, 1), w = Tensor::zeros(Dtype::BF16, {120});
  Tensor coords = Tensor::zeros(Dtype::I64, {program::kNumGroups});
  coords.set(1, 2);
  call_cuda(KernelKind::round_share, Phase::Update, {in(x), in(coords), add(w)},
            {{"group", 1}, {"shard", 50}});
  const std::vector<double> rounded = Tensor::of(Dtype::BF16, {50}, x.numbers()).numbers();
  for (int i = 0; i < 120; ++i) EXPECT_EQ(w.at(i), i < 100 ? 0 : rounded[static_cast<size_t>(i - 100)]);
}

TEST(CudaBiasUpdate, AgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  for (const int experts : {1, 8, 257})
    for (const int commit_value : {0, 1}) {
      Tensor load = Tensor::zeros(Dtype::I64, {experts}), bias = Tensor::normal(Dtype::F32, {experts}, 1);
      for (int e = 0; e < experts; ++e) load.set(e, (e * 37) % 50);
      Tensor commit = Tensor::of(Dtype::I32, {1}, {static_cast<double>(commit_value)});
      expect_agrees(KernelKind::bias_update, Phase::Update, {in(load), in(commit), add(bias)},
                    {{"rate", 1e-3}}, bound(Dtype::F32));
    }
}

// The fused pass gives the bits of adamw followed by round_share.
TEST_P(CudaOptimizer, AdamwRoundIsAdamwThenRound) {
  PLEAT_NEEDS_GPU();
  for (const int count : {5, 4096, 70001})
    for (const Dtype moment : {Dtype::F32, Dtype::BF16}) {
      Tensor g = Tensor::normal(GetParam(), {count}, 1),
             hyper = Tensor::of(Dtype::F64, {4}, {1e-2, 17, 0, 0});
      Tensor scale = Tensor::of(Dtype::F64, {2}, {3, 0.75}), commit = Tensor::of(Dtype::I32, {1}, {1});
      Tensor w = Tensor::normal(Dtype::F32, {count}, 2), m = Tensor::normal(moment, {count}, 3, 0.1);
      Tensor v = positive(moment, count, 4), low = Tensor::zeros(Dtype::BF16, {count});
      Tensor w2 = w, m2 = m, v2 = v, low2 = low;
      call_cuda(KernelKind::adamw, Phase::Update,
                {in(g), in(hyper), in(scale), in(commit), none(), add(w), add(m), add(v)}, kAdam);
      call_cuda(KernelKind::round_share, Phase::Update, {in(w), none(), add(low)});
      device::cuda::Lane lane;
      std::vector<std::unique_ptr<device::cuda::Memory>> memory;
      std::vector<Arg> args;
      Tensor* const tensors[] = {&g, &hyper, &scale, &commit, nullptr, &w2, &m2, &v2, &low2};
      for (Tensor* t : tensors) {
        Arg arg;
        if (t) {
          const auto bytes = static_cast<int64_t>(t->bytes.size());
          memory.push_back(std::make_unique<device::cuda::Memory>(bytes));
          lane.copy_in(memory.back()->data(), t->bytes.data(), bytes);
          arg = {memory.back()->data(), t->dtype, t->shape,
                 args.size() < 5 ? program::Access::Read : program::Access::Update, true};
        }
        args.push_back(arg);
      }
      const CudaLaunch launch = prepare_adamw_round(Invocation{args, &kAdam, nullptr}, lane);
      ASSERT_TRUE(launch);
      launch();
      for (size_t i = 5; i < 9; ++i)
        lane.copy_out(tensors[i]->bytes.data(), args[i].data, static_cast<int64_t>(tensors[i]->bytes.size()));
      lane.synchronize();
      EXPECT_EQ(w2.bytes, w.bytes);
      EXPECT_EQ(m2.bytes, m.bytes);
      EXPECT_EQ(v2.bytes, v.bytes);
      EXPECT_EQ(low2.bytes, low.bytes);
    }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaOptimizer, ::testing::Values(Dtype::F32, Dtype::BF16));

}  // namespace
}  // namespace pleat::kernels::testing
