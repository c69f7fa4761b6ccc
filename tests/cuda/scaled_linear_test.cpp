// Products of codes on the GPU against the CPU's. On the ordinary cores f32 outputs have the CPU's bits. The tensor cores
// cut what they add within a block of the depth, so their sums are held to a part of the sum of sizes.
#include <array>
#include <cmath>
#include <functional>

#include "cuda/cuda_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

const program::AttrSet kFp8 = {{"recipe", 1}};
// Of the sum of sizes of the products. docs/numerics.md, section 11.
constexpr double kCut = 0x1p-11;

int64_t blocks(int64_t n) { return (n + 127) / 128; }

struct Coded {
  Tensor codes, scale;
};
// What lies behind the rows in use must not count.
void spoil(Coded& c, int64_t used) {
  const int64_t n = c.codes.shape[1], across = c.scale.shape[1];
  for (int64_t i = used * n; i < c.codes.size(); ++i) c.codes.bytes[static_cast<size_t>(i)] = std::byte{0x7f};
  for (int64_t i = used * across; i < c.scale.size(); ++i) c.scale.set(i, std::nan(""));
}
Coded rows_of(Tensor& x, int64_t used) {
  Coded made{Tensor::zeros(Dtype::E4M3, x.shape),
             Tensor::zeros(Dtype::F32, {x.shape[0], blocks(x.shape[1])})};
  call(KernelKind::quantize, Phase::Forward,
       {in(x), none(), none(), none(), out(made.codes), out(made.scale), none(), none(), none(), none()},
       kFp8);
  spoil(made, used);
  return made;
}
Coded columns_of(Coded& rows, int64_t experts, Pass offsets) {
  const int64_t n = rows.codes.shape[1], R = rows.codes.shape[0],
                room = blocks(R + (experts > 0 ? experts * 127 : 0)) * 128;
  Coded made{Tensor::nan(Dtype::E4M3, {room, n}), Tensor::nan(Dtype::F32, {room / 128, n})};
  call(KernelKind::turn_codes, Phase::BackwardWeight,
       {in(rows.codes), in(rows.scale), offsets, out(made.codes), out(made.scale)}, kFp8);
  return made;
}
Coded weight_of(Tensor& w, bool turned) {
  std::vector<int64_t> shape = w.shape;
  const size_t rank = shape.size();
  if (turned) std::swap(shape[rank - 1], shape[rank - 2]);
  std::vector<int64_t> scale = shape;
  scale[rank - 1] = blocks(scale[rank - 1]), scale[rank - 2] = blocks(scale[rank - 2]);
  Coded made{Tensor::zeros(Dtype::E4M3, shape), Tensor::zeros(Dtype::F32, scale)};
  call(KernelKind::quantize_weight, turned ? Phase::BackwardInput : Phase::Forward,
       turned ? std::vector<Pass>{in(w), out(made.codes), out(made.scale)}
              : std::vector<Pass>{in(w), none(), out(made.codes), out(made.scale), none(), none()},
       {{"recipe", 1}, {"turned", turned ? 1.0 : 0.0}});
  return made;
}
Coded sizes_of(Coded c) {
  for (std::byte& b : c.codes.bytes) b &= std::byte{0x7f};
  return c;
}

double worst_cut = 0;  // seen so far, as a part of the sum of sizes

// `product` gives the arguments for codes a and b, the offsets or none, and the output.
using Product = std::function<std::vector<Pass>(Coded& a, Coded& b, Tensor& to)>;
void expect_product(const char* what, KernelKind kind, Phase phase, Coded& a, Coded& b, const Tensor& before,
                    const Product& product) {
  SCOPED_TRACE(what);
  const Dtype dtype = before.dtype;
  Tensor got = before, want = Tensor::of(Dtype::F32, before.shape, before.numbers()),
         sizes = Tensor::nan(Dtype::F32, before.shape);
  const bool adds = product(a, b, want).back().access == program::Access::Update;
  for (int64_t i = 0; adds && i < sizes.size(); ++i) sizes.set(i, std::abs(before.at(i)));
  call(kind, phase, product(a, b, want), kFp8);
  Coded size_a = sizes_of(a), size_b = sizes_of(b);
  std::vector<Pass> of_sizes = product(size_a, size_b, sizes);
  if (of_sizes.size() == 7) of_sizes[4] = of_sizes[5] = none();  // bias, residual
  call(kind, phase, of_sizes, kFp8);
  call_cuda(kind, phase, product(a, b, got), kFp8);
  if (::testing::Test::HasFatalFailure()) return;
  int64_t wrong = 0;
  for (int64_t i = 0; i < got.size(); ++i) {
    const double x = got.at(i), y = want.at(i), size = sizes.at(i);
    // What is added to is rounded by the copy engine once more, behind the sum.
    const double rounding = dtype == Dtype::BF16 ? adds ? 0x1p-7 * size : 0x1p-8 * std::abs(y) : 0;
    if (std::isnan(y) && std::isnan(x)) continue;
    const double cut = std::max(0.0, std::abs(x - y) - rounding);
    if (size > 0 && dtype == Dtype::F32) worst_cut = std::max(worst_cut, cut / size);
    if (!(cut <= kCut * size + 1e-30) && wrong++ == 0)
      ADD_FAILURE() << "element " << i << " of " << got.shape[got.shape.size() - 2] << " x "
                    << got.shape.back() << ": GPU " << x << ", CPU " << y << ", sizes " << size;
  }
  if (wrong > 1) ADD_FAILURE() << wrong << " of " << got.size() << " are off";
  if (only_once()) return;
  Tensor again = before;
  call_cuda(kind, phase, product(a, b, again), kFp8);
  EXPECT_TRUE(again == got) << "other bits when run again";
}

struct Shape {
  std::vector<int> rows;  // per expert
  int in, out;
};
Shape many(int experts, const std::function<int(int)>& rows) {
  Shape s{{}, 144, 264};
  for (int e = 0; e < experts; ++e) s.rows.push_back(rows(e));
  return s;
}
const std::vector<Shape> kShapes = {
    {{5}, 16, 8},
    {{0, 3, 0, 130, 1, 0}, 64, 64},
    {{1, 127, 128, 129, 64, 63}, 80, 520},  // widths that fill no tile
    {{257, 0, 65}, 192, 768},
    {{0, 0, 0}, 64, 128},  // nobody came
    {{600, 30, 300}, 640, 384},
    {{1500, 700}, 256, 1024},  // several tiles for every block
    {{90, 20}, 33, 41},        // not whole units: plain products
    many(400,
         [](int e) { return std::array{0, 1, 0, 17, 0, 64, 0, 33, 0, 80}[static_cast<size_t>(e * 7 % 10)]; }),
    many(101, [](int e) { return e * e * 7 % 90; }),
};

TEST(CudaScaledGrouped, AgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  for (const Shape& s : kShapes) {
    std::vector<double> at = {0};
    for (int n : s.rows) at.push_back(at.back() + n);
    const auto E = static_cast<int64_t>(s.rows.size()), used = static_cast<int64_t>(at.back()),
               rows = used + 70;
    if (only_once() && (E > 150 || used * s.in > 200000)) continue;
    SCOPED_TRACE(::testing::Message() << "in " << s.in << " out " << s.out << " rows " << used);
    Tensor offsets = Tensor::of(Dtype::I32, {E + 1}, at),
           w = Tensor::normal(Dtype::F32, {E, s.out, s.in}, 3, 0.1),
           x = Tensor::normal(Dtype::F32, {rows, s.in}, 1),
           dy = Tensor::normal(Dtype::F32, {rows, s.out}, 2, 0.01);
    Coded cx = rows_of(x, used), cdy = rows_of(dy, used), cw = weight_of(w, false), ct = weight_of(w, true);
    Coded xc = columns_of(cx, E, in(offsets)), dyc = columns_of(cdy, E, in(offsets));
    const auto rows_product = [&](Coded& a, Coded& b, Tensor& to) {
      return std::vector<Pass>{in(a.codes), in(a.scale), in(b.codes), in(b.scale), in(offsets), out(to)};
    };
    for (const Dtype type : {Dtype::BF16, Dtype::F32}) {
      if (type == Dtype::F32 && used * s.in * s.out > (1 << 26)) continue;  // the plain kernels'
      expect_product("forward", KernelKind::scaled_grouped_linear, Phase::Forward, cx, cw,
                     Tensor::nan(type, {rows, s.out}), rows_product);
      expect_product("dgrad", KernelKind::scaled_grouped_linear, Phase::BackwardInput, cdy, ct,
                     Tensor::nan(type, {rows, s.in}), rows_product);
      for (const bool adds : {false, true})
        expect_product(
            adds ? "wgrad added" : "wgrad", KernelKind::scaled_grouped_linear, Phase::BackwardWeight, dyc, xc,
            adds ? Tensor::normal(type, {E, s.out, s.in}, 7, 3.0) : Tensor::nan(type, {E, s.out, s.in}),
            [&](Coded& a, Coded& b, Tensor& to) {
              return std::vector<Pass>{in(a.codes), in(a.scale), in(b.codes),
                                       in(b.scale), in(offsets), adds ? add(to) : out(to)};
            });
    }
  }
  std::printf("worst cut so far: 2^%.2f of the sum of sizes\n", std::log2(worst_cut));
}

TEST(CudaScaledLinear, AgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  struct Case {
    int64_t rows, in, out;
  };
  for (const auto& [rows, n, m] : {Case{1, 16, 8}, Case{37, 144, 72}, Case{130, 64, 200},
                                   Case{300, 1536, 576}, Case{65, 257, 33}, Case{700, 256, 2064}}) {
    if (only_once() && rows * n > 200000) continue;
    SCOPED_TRACE(::testing::Message() << rows << " rows, in " << n << ", out " << m);
    Tensor x = Tensor::normal(Dtype::F32, {rows, n}, 1), w = Tensor::normal(Dtype::F32, {m, n}, 2, 0.1),
           dy = Tensor::normal(Dtype::F32, {rows, m}, 3, 0.01);
    Coded cx = rows_of(x, rows), cdy = rows_of(dy, rows), cw = weight_of(w, false), ct = weight_of(w, true);
    Coded xc = columns_of(cx, 0, none()), dyc = columns_of(cdy, 0, none());
    for (const Dtype type : {Dtype::BF16, Dtype::F32})
      for (const bool more : {false, true}) {
        // bias and residual have the output's type: of the CPU's call f32
        Tensor bias = Tensor::normal(Dtype::BF16, {m}, 4),
               residual = Tensor::normal(Dtype::BF16, {rows, m}, 5);
        Tensor wide_bias = Tensor::of(Dtype::F32, {m}, bias.numbers()),
               wide_residual = Tensor::of(Dtype::F32, {rows, m}, residual.numbers());
        expect_product(more ? "forward with bias and residual" : "forward", KernelKind::scaled_linear,
                       Phase::Forward, cx, cw, Tensor::nan(type, {rows, m}),
                       [&](Coded& a, Coded& b, Tensor& to) {
                         const bool narrow = to.dtype == Dtype::BF16;
                         return std::vector<Pass>{in(a.codes),
                                                  in(a.scale),
                                                  in(b.codes),
                                                  in(b.scale),
                                                  more ? in(narrow ? bias : wide_bias) : none(),
                                                  more ? in(narrow ? residual : wide_residual) : none(),
                                                  out(to)};
                       });
        const auto product = [&](Coded& a, Coded& b, Tensor& to) {
          return std::vector<Pass>{in(a.codes), in(a.scale), in(b.codes), in(b.scale),
                                   more ? add(to) : out(to)};
        };
        const auto before = [&](std::vector<int64_t> shape) {
          return more ? Tensor::normal(type, shape, 6) : Tensor::nan(type, shape);
        };
        expect_product("dgrad", KernelKind::scaled_linear, Phase::BackwardInput, cdy, ct, before({rows, n}),
                       product);
        expect_product("wgrad", KernelKind::scaled_linear, Phase::BackwardWeight, dyc, xc, before({m, n}),
                       product);
      }
  }
  std::printf("worst cut so far: 2^%.2f of the sum of sizes\n", std::log2(worst_cut));
}

// f32 outputs are added by the ordinary cores in the CPU's order.
TEST(CudaScaledLinear, PlainProductsHaveTheBitsOfTheCpus) {
  PLEAT_NEEDS_GPU();
  Tensor x = Tensor::normal(Dtype::F32, {70, 300}, 1), w = Tensor::normal(Dtype::F32, {140, 300}, 2);
  Coded cx = rows_of(x, 70), cw = weight_of(w, false);
  Tensor gpu = Tensor::nan(Dtype::F32, {70, 140}), cpu = gpu;
  call(KernelKind::scaled_linear, Phase::Forward,
       {in(cx.codes), in(cx.scale), in(cw.codes), in(cw.scale), none(), none(), out(cpu)}, kFp8);
  call_cuda(KernelKind::scaled_linear, Phase::Forward,
            {in(cx.codes), in(cx.scale), in(cw.codes), in(cw.scale), none(), none(), out(gpu)}, kFp8);
  EXPECT_TRUE(gpu == cpu);
}

}  // namespace
}  // namespace pleat::kernels::testing
