// adamw_coded on the GPU: the CPU's bits, in every format, of a whole tensor and of a piece, wherever codes meet.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "cuda/cuda_support.h"
#include "tensor/block_codes.h"

namespace pleat::kernels::testing {
namespace {

using program::AttrSet;
using program::KernelKind;
using program::Phase;
using tensor::Dtype;
using tensor::kCodeBlock;

// F64: nothing is beside the weight.
struct Format {
  Dtype gradient, weight, rest, first, second;
};

AttrSet attributes(double element = 0, double beta1 = 0.9, double beta2 = 0.95) {
  return {{"beta1", beta1}, {"beta2", beta2}, {"element", element}, {"eps", 1e-8},
          {"lr_mult", 0.5}, {"stream", 77},   {"weight_decay", 0.1}};
}

struct Stepped {
  Tensor g, w, rest, m, m_scale, v, v_scale;
  Tensor hyper = Tensor::of(Dtype::F64, {4}, {1e-2, 1, 0, 0}), scale = Tensor::of(Dtype::F64, {2}, {3, 0.75}),
         commit = Tensor::of(Dtype::I32, {1}, {1}), rng = Tensor::of(Dtype::I64, {2}, {42, 1}),
         coords = Tensor::zeros(Dtype::I64, {program::kNumGroups});
  bool chance = false, cut = false;

  // `size` of `count` elements where they are not as many.
  Stepped(const Format& f, int64_t count, int64_t size)
      : g(Tensor::normal(f.gradient, {size}, 1)),
        w(Tensor::normal(f.weight, {count}, 2)),
        rest(Tensor::zeros(f.rest, {f.rest == Dtype::F64 ? 0 : size})),
        m(Tensor::zeros(f.first, {size})),
        m_scale(Tensor::zeros(Dtype::F32, {f.first == Dtype::U8 ? (size + kCodeBlock - 1) / kCodeBlock : 0})),
        v(Tensor::zeros(f.second, {size})),
        v_scale(
            Tensor::zeros(Dtype::F32, {f.second == Dtype::U8 ? (size + kCodeBlock - 1) / kCodeBlock : 0})),
        chance(f.weight == Dtype::BF16 && f.rest != Dtype::I16),
        cut(size != count) {}
  Stepped(const Format& f, int64_t count) : Stepped(f, count, count) {}

  std::vector<Pass> passes(int step) {
    hyper.set(1, step), rng.as<int64_t>()[1] = step;
    std::vector<Pass> out = {
        in(g), in(hyper), in(scale), in(commit), chance ? in(rng) : none(), cut ? in(coords) : none(),
        add(w)};
    for (Tensor* t : {&m, &m_scale, &v, &v_scale, &rest})
      if (t->size() > 0) out.push_back(add(*t));
    return out;
  }
  bool same_states(const Stepped& other) const {
    return m == other.m && m_scale == other.m_scale && v == other.v && v_scale == other.v_scale;
  }
  bool operator==(const Stepped& other) const {
    return same_states(other) && w == other.w && rest == other.rest;
  }
};

// A step on both, from the same; whether all of it is the same behind it.
void expect_same_step(Stepped& cpu, Stepped& gpu, int step, const AttrSet& attrs) {
  call(KernelKind::adamw_coded, Phase::Update, cpu.passes(step), attrs);
  call_cuda(KernelKind::adamw_coded, Phase::Update, gpu.passes(step), attrs);
  ASSERT_TRUE(gpu.m == cpu.m) << "first moment, step " << step;
  ASSERT_TRUE(gpu.m_scale == cpu.m_scale) << "its scales, step " << step;
  ASSERT_TRUE(gpu.v == cpu.v) << "second moment, step " << step;
  ASSERT_TRUE(gpu.v_scale == cpu.v_scale) << "its scales, step " << step;
  ASSERT_TRUE(gpu.w == cpu.w) << "weight, step " << step;
  ASSERT_TRUE(gpu.rest == cpu.rest) << "rest, step " << step;
}

std::vector<Format> formats() {
  std::vector<Format> out;
  for (const Dtype gradient : {Dtype::F32, Dtype::BF16})
    for (const auto& [weight, rest] : {std::pair{Dtype::F32, Dtype::F64},
                                       {Dtype::BF16, Dtype::I16},
                                       {Dtype::BF16, Dtype::U8},
                                       {Dtype::BF16, Dtype::F64}})
      for (const Dtype first : {Dtype::U8, Dtype::F32, Dtype::BF16})
        for (const Dtype second : {Dtype::U8, Dtype::F32, Dtype::BF16})
          out.push_back({gradient, weight, rest, first, second});
  return out;
}

// Numbers of many sizes, some zero.
void scatter(Tensor& g, uint64_t seed) {
  const Tensor sizes = Tensor::normal(Dtype::F64, g.shape, seed);
  for (int64_t i = 0; i < g.size(); ++i) g.set(i, i % 13 == 5 ? 0 : g.at(i) * std::exp(3 * sizes.at(i)));
}

TEST(CudaCodedUpdate, EveryFormatHasTheBitsOfTheCpu) {
  PLEAT_NEEDS_GPU();
  for (const Format& format : formats())
    for (const int64_t count :
         only_once() ? std::vector<int64_t>{1300} : std::vector<int64_t>{1, 7, 255, 256, 4096, 70001}) {
      SCOPED_TRACE(fmt::format("{} {} {} {} {} of {}", tensor::name_of(format.gradient),
                               tensor::name_of(format.weight), tensor::name_of(format.rest),
                               tensor::name_of(format.first), tensor::name_of(format.second), count));
      Stepped cpu(format, count), gpu = cpu;
      for (int step = 1; step <= (only_once() ? 2 : 4); ++step) {
        cpu.g = Tensor::normal(format.gradient, {count}, 10 + static_cast<uint64_t>(step));
        if (step > 1) scatter(cpu.g, static_cast<uint64_t>(step));
        gpu.g = cpu.g;
        expect_same_step(cpu, gpu, step, attributes());
        if (HasFatalFailure()) return;
      }
    }
}

// Shares, the last of which may be short or empty, or lie at addresses that are no multiple of 16 bytes; and weights that
// begin inside four random numbers of a draw.
TEST(CudaCodedUpdate, PiecesHaveTheBitsOfTheCpu) {
  PLEAT_NEEDS_GPU();
  const std::vector<Format> few = {{Dtype::F32, Dtype::F32, Dtype::F64, Dtype::U8, Dtype::U8},
                                   {Dtype::BF16, Dtype::BF16, Dtype::U8, Dtype::U8, Dtype::U8},
                                   {Dtype::F32, Dtype::BF16, Dtype::F64, Dtype::U8, Dtype::BF16},
                                   {Dtype::BF16, Dtype::BF16, Dtype::U8, Dtype::BF16, Dtype::F32}};
  for (const Format& format : few)
    for (const auto& [count, shard] :
         {std::pair<int64_t, int64_t>{70001, 35072}, {4099, 768}, {300, 256}, {1001, 333}}) {
      if (shard == 333 && (format.first == Dtype::U8 || format.second == Dtype::U8)) continue;
      for (const double element : {0.0, 1.0, 6.0, 3.0}) {
        AttrSet attrs = attributes(element);
        attrs.push_back({"group", 5}), attrs.push_back({"shard", static_cast<double>(shard)});
        Stepped cpu(format, count, shard), gpu = cpu;
        for (int64_t place = 0; place <= count / shard + 1; ++place) {
          cpu.coords.as<int64_t>()[5] = place, gpu.coords = cpu.coords;
          expect_same_step(cpu, gpu, static_cast<int>(place + 1), attrs);
          if (HasFatalFailure()) return;
        }
      }
    }
}

TEST(CudaCodedUpdate, WritesNothingWithoutCommit) {
  PLEAT_NEEDS_GPU();
  Stepped run({Dtype::BF16, Dtype::BF16, Dtype::U8, Dtype::U8, Dtype::U8}, 5000);
  const Stepped before = run;
  run.commit.set(0, 0);
  call_cuda(KernelKind::adamw_coded, Phase::Update, run.passes(1), attributes());
  EXPECT_TRUE(run == before);
}

// With both betas 0 the first moment is the gradient and the root of the second its size, for the root of a rounded square is the
// number: every way between two codes, and the floats on both sides of it, in blocks of sizes from the smallest float on.
TEST(CudaCodedUpdate, CodesMeetWhereTheCpusDo) {
  PLEAT_NEEDS_GPU();
  for (const bool root : {false, true}) {
    std::vector<double> numbers;
    for (const float most :
         {0x1p-149f, 0x1.8p-147f, 0x1.fp-130f, 0x1.234566p-101f, 0x1p-100f, 0x1.fffffep-61f, 0x1p-60f,
          0x1.7b3ac2p-20f, 1.0f, 0x1.921fb6p1f, 0x1.23456p59f, 0x1.9p125f, 0x1.fffffep126f}) {
      if (root && (most < 0x1p-50f || most > 0x1p60f)) continue;  // their squares are not floats
      const auto halves = [&](int c) {
        return static_cast<double>(most) *
               (root ? tensor::RootCode::kHalves : tensor::SignedCode::kHalves)[static_cast<size_t>(c)];
      };
      std::vector<float> all;
      for (int c = 1; c <= (root ? 255 : 127); ++c) {
        const auto at = static_cast<float>(halves(c));
        for (const float x : {std::nextafter(at, 0.0f), at, std::nextafter(at, most)})
          all.push_back(c % 2 == 0 ? -x : x);
      }
      for (size_t i = 0; i < all.size(); ++i) {
        if (numbers.size() % kCodeBlock == 0) numbers.push_back(i % 2 ? most : -most);
        numbers.push_back(all[i]);
      }
      while (numbers.size() % kCodeBlock != 0) numbers.push_back(0);
    }
    const auto count = static_cast<int64_t>(numbers.size());
    Stepped cpu(
        {Dtype::F32, Dtype::F32, Dtype::F64, root ? Dtype::F32 : Dtype::U8, root ? Dtype::U8 : Dtype::F32},
        count);
    cpu.g = Tensor::of(Dtype::F32, {count}, numbers);
    cpu.scale.set(1, 1);
    Stepped gpu = cpu;
    expect_same_step(cpu, gpu, 1, attributes(0, 0, 0));
    if (HasFatalFailure()) return;
  }
}

// A block with a number that is not finite has no scale, the blocks beside it do not see it, and no code lies outside its block.
TEST(CudaCodedUpdate, ShowsWhatIsNotFinite) {
  PLEAT_NEEDS_GPU();
  for (const double bad : {double(INFINITY), double(-INFINITY), double(NAN), 3e38}) {
    Stepped cpu({Dtype::F32, Dtype::BF16, Dtype::U8, Dtype::U8, Dtype::U8}, 5 * kCodeBlock + 9);
    for (const int64_t at : {int64_t{300}, int64_t{3 * kCodeBlock}, 5 * kCodeBlock + 8}) cpu.g.set(at, bad);
    Stepped gpu = cpu;
    for (int step = 1; step <= 2; ++step) {
      call(KernelKind::adamw_coded, Phase::Update, cpu.passes(step), attributes());
      call_cuda(KernelKind::adamw_coded, Phase::Update, gpu.passes(step), attributes());
      EXPECT_TRUE(std::isnan(gpu.v_scale.at(1)) && std::isnan(gpu.v_scale.at(3)) &&
                  std::isnan(gpu.v_scale.at(5)));
      for (const int64_t block : {0, 1, 2, 3, 4, 5}) {
        const bool nan = std::isnan(cpu.m_scale.at(block));
        EXPECT_TRUE(nan ? std::isnan(gpu.m_scale.at(block)) : gpu.m_scale.at(block) == cpu.m_scale.at(block))
            << block;
      }
      EXPECT_TRUE(gpu.m == cpu.m && gpu.v == cpu.v) << bad << " step " << step;
      for (int64_t i = 0; i < gpu.w.size(); ++i) {
        if (std::isnan(cpu.w.at(i))) {
          ASSERT_TRUE(std::isnan(gpu.w.at(i))) << i;
        } else {
          ASSERT_EQ(gpu.w.at(i), cpu.w.at(i)) << i;
          ASSERT_EQ(gpu.rest.at(i), cpu.rest.at(i)) << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace pleat::kernels::testing
