// Updates of weights and states in fewer bits. What a step does is that of floats, from what was stored, and what it stores is
// the rounding of theirs: against adamw itself to the bit, against a step in double, and against float states over many steps.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/dense_support.h"
#include "kernels/kernel_support.h"
#include "tensor/block_codes.h"
#include "tensor/short_master.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;
using tensor::kCodeBlock;
using tensor::RootCode;
using tensor::SignedCode;

const program::AttrSet kAttrs = {{"beta1", 0.9},   {"beta2", 0.95}, {"element", 0},       {"eps", 1e-8},
                                 {"lr_mult", 0.5}, {"stream", 77},  {"weight_decay", 0.1}};

int64_t blocks(int64_t n) { return (n + kCodeBlock - 1) / kCodeBlock; }

struct Moment {
  Tensor numbers, scale;  // a scale: numbers are codes
  bool root = false;
  Moment(Dtype dtype, int64_t n, bool is_root)
      : numbers(Tensor::zeros(dtype, {n})),
        scale(Tensor::zeros(Dtype::F32, {dtype == Dtype::U8 ? blocks(n) : 0})),
        root(is_root) {}
  bool coded() const { return numbers.dtype == Dtype::U8; }
  void pass(std::vector<Pass>& to) {
    to.push_back(add(numbers));
    if (coded()) to.push_back(add(scale));
  }
  // As floats; and from floats.
  Tensor opened() {
    Tensor out = Tensor::zeros(Dtype::F32, numbers.shape);
    for (int64_t i = 0; i < numbers.size(); ++i) {
      if (!coded()) {
        out.as<float>()[i] = static_cast<float>(numbers.at(i));
        continue;
      }
      const float s = scale.as<float>()[i / kCodeBlock];
      const uint8_t code = numbers.as<uint8_t>()[i];
      const float x = s * (root ? RootCode::kPlaces[code] : SignedCode::kPlaces[code]);
      out.as<float>()[i] = root ? x * x : x;
    }
    return out;
  }
  void close(Tensor& from) {
    if (!coded()) {
      numbers = Tensor::of(numbers.dtype, numbers.shape, from.numbers());
      return;
    }
    for (int64_t b = 0; b < blocks(numbers.size()); ++b) {
      const int64_t count = std::min(kCodeBlock, numbers.size() - b * kCodeBlock);
      std::vector<float> x(from.as<float>() + b * kCodeBlock, from.as<float>() + b * kCodeBlock + count);
      if (root)
        for (float& v : x) v = std::sqrt(v);
      uint8_t* codes = numbers.as<uint8_t>() + b * kCodeBlock;
      scale.as<float>()[b] = root ? tensor::encode_block<RootCode>(x.data(), count, codes)
                                  : tensor::encode_block<SignedCode>(x.data(), count, codes);
    }
  }
  bool operator==(const Moment& other) const { return numbers == other.numbers && scale == other.scale; }
};

struct CodedRun {
  Tensor g, w, rest, hyper = Tensor::of(Dtype::F64, {4}, {0.01, 1, 0, 0}),
                     scale = Tensor::of(Dtype::F64, {2}, {7, 0.25}),
                     commit = Tensor::of(Dtype::I32, {1}, {1}), rng = Tensor::of(Dtype::I64, {2}, {42, 1});
  Moment m, v;
  // `kept`: what a bf16 weight keeps of its float; F64: nothing.
  CodedRun(int64_t n, Dtype first, Dtype second, Dtype weight = Dtype::F32, Dtype kept = Dtype::F64)
      : g(Tensor::normal(Dtype::F32, {n}, 1)),
        w(Tensor::normal(weight, {n}, 2)),
        rest(Tensor::zeros(kept, {kept == Dtype::F64 ? 0 : n})),
        m(first, n, false),
        v(second, n, true) {}
  bool chance() const { return w.dtype == Dtype::BF16 && rest.dtype != Dtype::I16; }
  void step(int number, int threads = 2, program::AttrSet attrs = kAttrs, Tensor* coords = nullptr) {
    hyper.set(1, number), rng.as<int64_t>()[1] = number;
    std::vector<Pass> args = {in(g), in(hyper), in(scale), in(commit)};
    args.push_back(chance() ? in(rng) : none());
    args.push_back(coords ? in(*coords) : none());
    args.push_back(add(w));
    m.pass(args), v.pass(args);
    if (rest.dtype != Dtype::F64) args.push_back(add(rest));
    call(KernelKind::adamw_coded, Phase::Update, args, attrs, threads);
  }
};

void float_step(CodedRun& r, Tensor& w, Tensor& m, Tensor& v) {
  call(KernelKind::adamw, Phase::Update,
       {in(r.g), in(r.hyper), in(r.scale), in(r.commit), none(), add(w), add(m), add(v)}, kAttrs);
}

constexpr std::pair<Dtype, Dtype> kFormats[] = {
    {Dtype::U8, Dtype::U8}, {Dtype::U8, Dtype::F32}, {Dtype::F32, Dtype::U8}, {Dtype::BF16, Dtype::U8}};

TEST(CodedUpdate, IsTheStepOfFloatsFromWhatWasStored) {
  for (const auto& [first, second] : kFormats)
    for (const int64_t n : {1, 255, 256, 1300, 70001}) {
      CodedRun r(n, first, second);
      for (int step = 1; step <= 4; ++step) {
        r.g = Tensor::normal(Dtype::F32, {n}, 10 + static_cast<uint64_t>(step));
        Tensor w = r.w, m = r.m.opened(), v = r.v.opened();
        r.hyper.set(1, step);
        float_step(r, w, m, v);
        Moment want_m = r.m, want_v = r.v;
        want_m.close(m), want_v.close(v);
        r.step(step);
        ASSERT_TRUE(r.w == w) << n << " step " << step;
        ASSERT_TRUE(r.m == want_m) << n << " step " << step;
        ASSERT_TRUE(r.v == want_v) << n << " step " << step;
      }
    }
}

// In double, with the rounding written once more: a search for the nearest of the places.
TEST(CodedUpdate, FollowsAReferenceInDouble) {
  constexpr int64_t n = 3 * kCodeBlock + 11;
  const auto places = [](int top, int per_octave) {
    std::vector<double> out = {0};
    for (int c = 1; c <= top; ++c) out.push_back(std::exp2(double(c - top) / per_octave));
    return out;
  };
  const std::vector<double> of_m = places(127, 8), of_v = places(255, 16);
  const auto rounded = [&](const std::vector<double>& at, std::vector<double>& x, bool root) {
    for (int64_t begin = 0; begin < n; begin += kCodeBlock) {
      const int64_t end = std::min(n, begin + kCodeBlock);
      double most = 0;
      for (int64_t i = begin; i < end; ++i) most = std::max(most, std::abs(x[size_t(i)]));
      for (int64_t i = begin; i < end; ++i) {
        double& number = x[size_t(i)];
        const double place = std::abs(number) / most;
        double nearest = 0;
        for (const double p : at)
          if (std::abs(p - place) < std::abs(nearest - place)) nearest = p;
        if (root && number > 0 && nearest == 0) nearest = at[1];
        number = std::copysign(nearest * most, number);
      }
    }
  };
  CodedRun r(n, Dtype::U8, Dtype::U8);
  std::vector<double> w = r.w.numbers(), m(n), roots(n);
  for (int step = 1; step <= 5; ++step) {
    r.g = Tensor::normal(Dtype::F32, {n}, 20 + static_cast<uint64_t>(step));
    for (int64_t i = 0; i < n; i += 7) r.g.set(i, 1e-3 * r.g.at(i));  // far below their blocks
    for (size_t i = 0; i < size_t(n); ++i) {
      const double gradient = 0.25 * r.g.at(static_cast<int64_t>(i));
      m[i] = 0.9 * m[i] + 0.1 * gradient;
      const double v = 0.95 * roots[i] * roots[i] + 0.05 * gradient * gradient;
      roots[i] = std::sqrt(v);
      w[i] -= 0.005 * (0.1 * w[i] +
                       m[i] / (1 - std::pow(0.9, step)) / (std::sqrt(v / (1 - std::pow(0.95, step))) + 1e-8));
    }
    rounded(of_m, m, false), rounded(of_v, roots, true);
    r.step(step);
    // Where a float fell to the other side of a tie, the next place.
    const std::vector<double> got_m = r.m.opened().numbers(), got_v = r.v.opened().numbers();
    int turned = 0;
    for (size_t i = 0; i < size_t(n); ++i) {
      const bool first = std::abs(got_m[i] - m[i]) > 1e-5 * std::abs(m[i]) + 1e-12,
                 second = std::abs(std::sqrt(got_v[i]) - roots[i]) > 1e-5 * roots[i] + 1e-12;
      turned += first + second;
      m[i] = got_m[i], roots[i] = std::sqrt(got_v[i]);
    }
    EXPECT_LE(turned, 3) << "step " << step;
    EXPECT_LE(norm_error(r.w.numbers(), w), 1e-5) << "step " << step;
    w = r.w.numbers();
  }
}

// Gradients of many sizes, 50 steps: the way of the weights and that of float states stay together as independent
// roundings let them.
TEST(CodedUpdate, FiftyStepsStayNearFloatStates) {
  constexpr int64_t n = 20 * kCodeBlock;
  const Tensor sizes = Tensor::normal(Dtype::F64, {n}, 3);
  CodedRun coded(n, Dtype::U8, Dtype::U8), wide(n, Dtype::F32, Dtype::F32);
  const std::vector<double> begin = coded.w.numbers();
  Tensor m = Tensor::zeros(Dtype::F32, {n}), v = m;
  program::AttrSet attrs = kAttrs;
  for (int step = 1; step <= 50; ++step) {
    Tensor g = Tensor::normal(Dtype::F32, {n}, 100 + static_cast<uint64_t>(step));
    for (int64_t i = 0; i < n; ++i) g.set(i, (g.at(i) + 0.3) * std::exp(sizes.at(i)));
    coded.g = wide.g = g;
    coded.step(step);
    wide.hyper.set(1, step);
    float_step(wide, wide.w, m, v);
  }
  double apart = 0, way = 0;
  for (int64_t i = 0; i < n; ++i) {
    apart += std::pow(coded.w.at(i) - wide.w.at(i), 2);
    way += std::pow(wide.w.at(i) - begin[size_t(i)], 2);
  }
  // Roundings of one unit, uniform, of the m and the root behind each step, remembered for 1 / (1 - beta^2) steps.
  const double of_m = SignedCode::kRounding, of_v = RootCode::kSquareRounding;
  const double step_error = std::sqrt(of_m * of_m / 3 / (1 - 0.81) + of_v * of_v / 4 / 3 / (1 - 0.9025));
  EXPECT_LE(std::sqrt(apart / way), 3 * step_error);
  EXPECT_GT(std::sqrt(apart / way), step_error / 100);
}

TEST(CodedUpdate, PiecesAndThreadsGiveTheBitsOfTheWhole) {
  const std::vector<std::array<Dtype, 4>> formats = {{Dtype::U8, Dtype::U8, Dtype::F32, Dtype::F64},
                                                     {Dtype::U8, Dtype::BF16, Dtype::BF16, Dtype::U8},
                                                     {Dtype::U8, Dtype::U8, Dtype::BF16, Dtype::F64},
                                                     {Dtype::F32, Dtype::U8, Dtype::BF16, Dtype::I16}};
  for (const auto& [first, second, weight, kept] : formats)
    for (const auto& [n, shard] :
         {std::pair<int64_t, int64_t>{70001, 35072}, {4099, 768}, {300, 256}, {200, 200}}) {
      CodedRun whole(n, first, second, weight, kept), one(n, first, second, weight, kept);
      Tensor w = whole.w;
      for (int step = 1; step <= 3; ++step) whole.step(step, 4), one.step(step, 1);
      ASSERT_TRUE(whole.w == one.w && whole.m == one.m && whole.v == one.v && whole.rest == one.rest);
      for (int64_t c = 0; c * shard < n; ++c) {
        CodedRun part(shard, first, second, weight, kept);
        Tensor coords = Tensor::zeros(Dtype::I64, {program::kNumGroups});
        coords.as<int64_t>()[5] = c;
        part.g = Tensor::nan(Dtype::F32, {shard});
        const int64_t count = std::min(shard, n - c * shard);
        for (int64_t i = 0; i < count; ++i) part.g.set(i, whole.g.at(c * shard + i));
        std::swap(part.w, w);
        program::AttrSet attrs = kAttrs;
        attrs.push_back({"group", 5}), attrs.push_back({"shard", static_cast<double>(shard)});
        for (int step = 1; step <= 3; ++step) part.step(step, 2, attrs, &coords);
        std::swap(part.w, w);
        Tensor m = part.m.opened(), v = part.v.opened(), want_m = whole.m.opened(), want_v = whole.v.opened();
        for (int64_t i = 0; i < count; ++i) {
          ASSERT_EQ(m.at(i), want_m.at(c * shard + i));
          ASSERT_EQ(v.at(i), want_v.at(c * shard + i));
        }
      }
      EXPECT_TRUE(w == whole.w) << n;
    }
}

TEST(CodedUpdate, WritesNothingWithoutCommit) {
  CodedRun r(1000, Dtype::U8, Dtype::U8);
  r.step(1);
  const CodedRun before = r;
  r.g = Tensor::nan(Dtype::F32, {1000});
  r.commit.set(0, 0);
  r.step(2);
  EXPECT_TRUE(r.w == before.w && r.m == before.m && r.v == before.v);
}

// A bf16 weight with its rest is the float weight.
TEST(NarrowUpdate, IsTheStepOfFloats) {
  constexpr int64_t n = 5000;
  for (const bool coded : {false, true}) {
    CodedRun narrow(n, Dtype::F32, coded ? Dtype::U8 : Dtype::F32, Dtype::BF16, Dtype::I16),
        wide(n, Dtype::F32, coded ? Dtype::U8 : Dtype::F32);
    wide.w = Tensor::of(Dtype::F32, {n}, narrow.w.numbers());
    Tensor m = Tensor::zeros(Dtype::F32, {n}), v = m;
    for (int step = 1; step <= 5; ++step) {
      narrow.hyper.set(1, step), wide.hyper.set(1, step);
      if (coded) {
        narrow.step(step), wide.step(step);
      } else {
        call(KernelKind::adamw_narrow, Phase::Update,
             {in(narrow.g), in(narrow.hyper), in(narrow.scale), in(narrow.commit), none(), add(narrow.w),
              add(narrow.m.numbers), add(narrow.v.numbers), add(narrow.rest)},
             kAttrs);
        float_step(wide, wide.w, m, v);
      }
      for (int64_t i = 0; i < n; ++i)
        ASSERT_EQ(tensor::join(narrow.w.as<uint16_t>()[i], narrow.rest.as<int16_t>()[i]),
                  wide.w.as<float>()[i]);
    }
  }
}

// Steps far below the bits that are kept: to the nearest the weight would never move; by chance it goes its way on average.
TEST(ShortMasters, SmallStepsDoNotVanish) {
  constexpr int64_t n = 4096;
  constexpr int kSteps = 400;
  for (const Dtype kept : {Dtype::U8, Dtype::F64}) {
    CodedRun r(n, Dtype::F32, Dtype::F32, Dtype::BF16, kept);
    program::AttrSet attrs = kAttrs;
    attrs.back().number = 0;  // no decay
    for (int64_t i = 0; i < n; ++i) r.w.set(i, 1.0), r.g.set(i, -1.0);
    // One step is a tenth of the distance between two weights above 1.
    const double unit = kept == Dtype::U8 ? 0x1p-15 : 0x1p-7, each = unit / 10;
    r.hyper.set(0, each / 0.5);
    for (int step = 1; step <= kSteps; ++step) r.step(step, 2, attrs);
    double sum = 0;
    for (int64_t i = 0; i < n; ++i)
      sum += kept == Dtype::U8 ? double(tensor::join_short(r.w.as<uint16_t>()[i], r.rest.as<int8_t>()[i]))
                               : r.w.at(i);
    const double moved = sum / n - 1, want = kSteps * each;
    // A step is off by at most a unit, half of it in the root mean square.
    const double spread = 0.5 * unit * std::sqrt(double(kSteps) / n);
    EXPECT_NEAR(moved, want, 5 * spread);
    EXPECT_LT(5 * spread, want / 5);
  }
}

TEST(ShortMasters, ChanceBelongsToSeedStepStreamAndElement) {
  const auto after = [](int64_t seed, int step, double stream, double element) {
    CodedRun r(1000, Dtype::F32, Dtype::F32, Dtype::BF16, Dtype::U8);
    r.rng.as<int64_t>()[0] = seed;
    program::AttrSet attrs = kAttrs;
    attrs[2].number = element, attrs[5].number = stream;
    r.hyper.set(0, 1e-4);
    r.step(step, 2, attrs);
    return r.rest;
  };
  const Tensor one = after(42, 1, 77, 0);
  EXPECT_TRUE(one == after(42, 1, 77, 0));
  EXPECT_FALSE(one == after(43, 1, 77, 0));
  EXPECT_FALSE(one == after(42, 1, 78, 0));
  EXPECT_FALSE(one == after(42, 1, 77, 4));
}

TEST(CodedUpdate, RefusesWhatDoesNotFit) {
  const auto refusal = [](CodedRun r, program::AttrSet attrs = kAttrs) {
    try {
      r.step(1, 2, attrs);
    } catch (const std::exception& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CodedRun r(1000, Dtype::U8, Dtype::U8);
  r.m.scale = Tensor::zeros(Dtype::F32, {3});
  EXPECT_NE(refusal(r).find("is [3], needed [4]"), std::string::npos) << refusal(r);
  CodedRun short_codes(1000, Dtype::U8, Dtype::U8);
  short_codes.v.numbers = Tensor::zeros(Dtype::U8, {999});
  EXPECT_NE(refusal(short_codes).find("has 999 in dimension 0, needed 1000"), std::string::npos);
  EXPECT_NE(
      refusal(CodedRun(1000, Dtype::U8, Dtype::U8, Dtype::F32, Dtype::I16)).find("needed the two moments"),
      std::string::npos);
  program::AttrSet bad = kAttrs;
  bad[5].number = 0.5;
  EXPECT_NE(refusal(CodedRun(10, Dtype::F32, Dtype::F32, Dtype::BF16), bad).find("attribute 'stream' is 0.5"),
            std::string::npos);
  CodedRun cut(300, Dtype::U8, Dtype::U8);
  cut.w = Tensor::zeros(Dtype::F32, {1000});
  Tensor coords = Tensor::zeros(Dtype::I64, {program::kNumGroups});
  program::AttrSet attrs = kAttrs;
  attrs.push_back({"group", 5}), attrs.push_back({"shard", 300});
  try {
    cut.step(1, 2, attrs, &coords);
    FAIL() << "a share that ends inside a block";
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find("needed a multiple of 256"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace pleat::kernels::testing
