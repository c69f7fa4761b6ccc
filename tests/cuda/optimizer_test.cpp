#include "cuda/cuda_support.h"

#include <cmath>
#include <limits>

#include "device/cuda/cuda.h"
#include "tensor/halves.h"

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

// Of the first and the second moment.
std::vector<std::pair<Dtype, Dtype>> moment_formats() {
  return {{Dtype::F32, Dtype::F32},
          {Dtype::BF16, Dtype::F32},
          {Dtype::F32, Dtype::BF16},
          {Dtype::BF16, Dtype::BF16}};
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
    for (const auto& [first, second] : moment_formats())
      for (const int commit_value : {0, 1}) {
        Tensor g = Tensor::normal(type, {count}, 1), hyper = Tensor::of(Dtype::F64, {4}, {1e-2, 17, 0, 0});
        Tensor scale = Tensor::of(Dtype::F64, {2}, {3, 0.75});
        Tensor commit = Tensor::of(Dtype::I32, {1}, {static_cast<double>(commit_value)});
        Tensor w = Tensor::normal(Dtype::F32, {count}, 2), m = Tensor::normal(first, {count}, 3, 0.1);
        Tensor v = positive(second, count, 4);
        expect_agrees(KernelKind::adamw, Phase::Update,
                      {in(g), in(hyper), in(scale), in(commit), none(), add(w), add(m), add(v)}, kAdam,
                      bound(first == second ? first : Dtype::BF16, 4));
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

// Moments are made of the same operations on both devices and rounded alike: their bits are the CPU's, in every
// format, of a whole tensor and of a piece. Three steps, each from what the one before stored.
TEST(CudaAdamw, MomentsHaveTheBitsOfTheCpu) {
  PLEAT_NEEDS_GPU();
  for (const auto& [first, second] : moment_formats())
    for (const int count : {1, 7, 4096, 70001})
      for (const bool cut : {false, true}) {
        Tensor g = Tensor::normal(Dtype::F32, {count}, 1),
               hyper = Tensor::of(Dtype::F64, {4}, {1e-2, 0, 0, 0});
        Tensor scale = Tensor::of(Dtype::F64, {2}, {3, 0.75}), commit = Tensor::of(Dtype::I32, {1}, {1});
        Tensor w = Tensor::normal(Dtype::F32, {cut ? 2 * count : count}, 2),
               m = Tensor::zeros(first, {count});
        Tensor v = Tensor::zeros(second, {count}), coords = Tensor::zeros(Dtype::I64, {program::kNumGroups});
        coords.set(3, 1);
        AttrSet attrs = kAdam;
        if (cut) attrs.push_back({"group", 3}), attrs.push_back({"shard", static_cast<double>(count)});
        Tensor w_gpu = w, m_gpu = m, v_gpu = v;
        const Pass place = cut ? in(coords) : none();
        for (int step = 1; step <= 3; ++step) {
          hyper.set(1, step);
          call(KernelKind::adamw, Phase::Update,
               {in(g), in(hyper), in(scale), in(commit), place, add(w), add(m), add(v)}, attrs);
          call_cuda(KernelKind::adamw, Phase::Update,
                    {in(g), in(hyper), in(scale), in(commit), place, add(w_gpu), add(m_gpu), add(v_gpu)},
                    attrs);
          ASSERT_TRUE(m_gpu == m) << count << " step " << step;
          ASSERT_TRUE(v_gpu == v) << count << " step " << step;
        }
      }
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

// Narrow weights move as the floats do that they and their rests make, bit for bit; a share as well as all.
TEST_P(CudaOptimizer, NarrowWeightsMoveAsFloats) {
  PLEAT_NEEDS_GPU();
  for (const int count : {5, 4096, 70001})
    for (const int shard : {0, 3, 4096})
      for (const auto& [first_moment, second_moment] : moment_formats()) {
        const int size = shard ? shard : count;
        Tensor g = Tensor::normal(GetParam(), {size}, 1),
               hyper = Tensor::of(Dtype::F64, {4}, {1e-2, 17, 0, 0});
        Tensor scale = Tensor::of(Dtype::F64, {2}, {3, 0.75}), commit = Tensor::of(Dtype::I32, {1}, {1});
        Tensor w = Tensor::normal(Dtype::F32, {count}, 2), m = Tensor::normal(first_moment, {size}, 3, 0.1);
        Tensor v = positive(second_moment, size, 4),
               coords = Tensor::zeros(Dtype::I64, {program::kNumGroups});
        coords.set(2, 1);
        const int first = shard ? std::min(count, shard) : 0,
                  end = shard ? std::min(count, 2 * shard) : count;
        Tensor narrow = Tensor::zeros(Dtype::BF16, {count}), rest = Tensor::zeros(Dtype::I16, {size});
        const auto floats = [&] { return reinterpret_cast<const float*>(w.bytes.data()); };
        const auto highs = [&] { return reinterpret_cast<uint16_t*>(narrow.bytes.data()); };
        const auto rests = [&] { return reinterpret_cast<int16_t*>(rest.bytes.data()); };
        for (int i = 0; i < count; ++i) {
          const tensor::Halves halves = tensor::split(floats()[i]);
          highs()[i] = halves.high;
          if (i >= first && i < end) rests()[i - first] = halves.rest;
        }
        program::AttrSet attrs = kAdam;
        if (shard) attrs.push_back({"group", 2}), attrs.push_back({"shard", static_cast<double>(shard)});
        const Pass place = shard ? in(coords) : none();
        Tensor m2 = m, v2 = v;
        call_cuda(KernelKind::adamw, Phase::Update,
                  {in(g), in(hyper), in(scale), in(commit), place, add(w), add(m), add(v)}, attrs);
        call_cuda(KernelKind::adamw_narrow, Phase::Update,
                  {in(g), in(hyper), in(scale), in(commit), place, add(narrow), add(m2), add(v2), add(rest)},
                  attrs);
        EXPECT_EQ(m2.bytes, m.bytes);
        EXPECT_EQ(v2.bytes, v.bytes);
        int different = 0;
        for (int i = 0; i < count; ++i) {
          const bool moved = i >= first && i < end;
          const tensor::Halves now = tensor::split(floats()[i]);
          different += highs()[i] != now.high || (moved && rests()[i - first] != now.rest);
        }
        EXPECT_EQ(different, 0) << count << " " << shard;
      }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaOptimizer, ::testing::Values(Dtype::F32, Dtype::BF16));

}  // namespace
}  // namespace pleat::kernels::testing
