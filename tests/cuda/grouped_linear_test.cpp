#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "cuda/cuda_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

struct Shape {
  std::vector<int> rows;  // per expert
  int in, out;
};

Tensor offsets_of(const Shape& s) {
  std::vector<double> at = {0};
  for (int n : s.rows) at.push_back(at.back() + n);
  return Tensor::of(Dtype::I32, {static_cast<int64_t>(at.size())}, at);
}

int64_t num_rows(const Shape& s, int spare) {
  int64_t n = spare;
  for (int r : s.rows) n += r;
  return n;
}

// Rows past the last expert hold NaN: nothing may read them into a result.
Tensor rows_with_rest(Dtype type, int64_t used, int64_t rows, int64_t width, uint64_t seed) {
  Tensor t = Tensor::normal(type, {rows, width}, seed);
  for (int64_t i = used * width; i < rows * width; ++i) t.set(i, std::nan(""));
  return t;
}

// Many experts, most with less than a step of rows or none: blocks go through many tiles without a product.
Shape many_small() {
  Shape s{{}, 136, 264};
  for (int e = 0; e < 400; ++e) s.rows.push_back(std::array{0, 1, 0, 17, 0, 64, 0, 33, 0, 80}[e * 7 % 10]);
  return s;
}

// Experts of all sizes in no order, few tiles each: weight gradients deal them by size, in several rounds.
Shape many_sizes() {
  Shape s{{}, 136, 264};
  for (int e = 0; e < 101; ++e) s.rows.push_back(e * e * 7 % 90);
  return s;
}

const std::vector<Shape> kShapes = {
    {{5}, 8, 8},
    {{0, 3, 0, 130, 1, 0}, 64, 64},
    {{1, 127, 128, 129, 64, 63}, 72, 520},  // widths that fill no tile
    {{257, 0, 65}, 192, 768},               // 192-wide tiles
    {{0, 0, 0}, 64, 128},                   // nobody came
    {{700, 30, 300}, 1024, 512},
    {{900, 513, 0, 1200, 40}, 1024, 2048},  // several tiles for every block
    {{300, 20}, 33, 41},                    // not a multiple of 16 bytes: plain products
    many_small(),
    many_sizes(),
};

class CudaGrouped : public ::testing::TestWithParam<std::pair<Dtype, Dtype>> {};

TEST_P(CudaGrouped, AgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const auto [type, grad] = GetParam();
  for (const Shape& s : kShapes) {
    if (only_once() && type == Dtype::F32 && s.in * s.out > 512 * 512)
      continue;  // the plain kernels', and slow
    const int64_t E = static_cast<int64_t>(s.rows.size()), used = num_rows(s, 0), rows = used + 70;
    SCOPED_TRACE(::testing::Message() << "in " << s.in << " out " << s.out << " rows " << used);
    Tensor offsets = offsets_of(s), w = Tensor::normal(type, {E, s.out, s.in}, 3);
    Tensor x = rows_with_rest(type, used, rows, s.in, 1), y = Tensor::nan(type, {rows, s.out});
    expect_agrees(KernelKind::grouped_linear, Phase::Forward,
                  {in(x), in(w), in(offsets), none(), none(), out(y)}, {}, bound(type, s.in));
    Tensor dy = rows_with_rest(type, used, rows, s.out, 2), dx = Tensor::nan(type, {rows, s.in});
    expect_agrees(KernelKind::grouped_linear, Phase::BackwardInput,
                  {in(dy), in(w), in(offsets), none(), out(dx), none()}, {}, bound(type, s.out));
    const int longest = *std::max_element(s.rows.begin(), s.rows.end());
    Tensor dw = Tensor::nan(grad, {E, s.out, s.in});
    expect_agrees(KernelKind::grouped_linear, Phase::BackwardWeight,
                  {in(dy), in(x), in(offsets), none(), out(dw), none()}, {}, bound(grad, longest));
    Tensor more = Tensor::normal(grad, {E, s.out, s.in}, 7, 10.0);
    Compare twice = bound(grad, longest);  // the product and the sum are rounded
    twice.norm *= 2, twice.element *= 2;
    expect_agrees(KernelKind::grouped_linear, Phase::BackwardWeight,
                  {in(dy), in(x), in(offsets), none(), add(more), none()}, {}, twice);
  }
}

TEST_P(CudaGrouped, Biases) {
  PLEAT_NEEDS_GPU();
  const auto [type, grad] = GetParam();
  const auto doubled = [](Compare c) {  // the product and the sum are rounded
    c.norm *= 2, c.element *= 2;
    return c;
  };
  // Whole packs of 16 bytes and not; several blocks of columns; experts whose rows end inside a block.
  for (const Shape& s : {Shape{{40, 0, 7, 100}, 64, 96}, Shape{{40, 0, 7, 100}, 64, 97},
                         Shape{{300, 1, 0, 517}, 32, 2880}, Shape{{0, 0, 0, 3}, 16, 8}}) {
    const int64_t E = static_cast<int64_t>(s.rows.size()), used = num_rows(s, 0), rows = used + 9;
    const int longest = *std::max_element(s.rows.begin(), s.rows.end());
    SCOPED_TRACE(::testing::Message() << "in " << s.in << " out " << s.out << " rows " << used);
    Tensor offsets = offsets_of(s), w = Tensor::normal(type, {E, s.out, s.in}, 3),
           b = Tensor::normal(type, {E, s.out}, 4);
    Tensor scale = Tensor::normal(Dtype::F32, {rows}, 5);
    Tensor x = rows_with_rest(type, used, rows, s.in, 1), y = Tensor::nan(type, {rows, s.out});
    expect_agrees(KernelKind::grouped_linear, Phase::Forward,
                  {in(x), in(w), in(offsets), in(b), in(scale), out(y)}, {}, doubled(bound(type, s.in)));
    Tensor dy = rows_with_rest(type, used, rows, s.out, 2), dx = Tensor::nan(type, {rows, s.in});
    Tensor dscale = Tensor::normal(Dtype::F32, {rows}, 6);
    expect_agrees(KernelKind::grouped_linear, Phase::BackwardInput,
                  {in(dy), in(w), in(offsets), in(b), out(dx), add(dscale)}, {}, bound(type, s.out));
    Tensor dw = Tensor::nan(grad, {E, s.out, s.in}), db = Tensor::nan(grad, {E, s.out});
    expect_agrees(KernelKind::grouped_linear, Phase::BackwardWeight,
                  {in(dy), in(x), in(offsets), in(scale), out(dw), out(db)}, {}, bound(grad, longest));
    Tensor more = Tensor::normal(grad, {E, s.out, s.in}, 7), more_b = Tensor::normal(grad, {E, s.out}, 8);
    expect_agrees(KernelKind::grouped_linear, Phase::BackwardWeight,
                  {in(dy), in(x), in(offsets), none(), add(more), add(more_b)}, {},
                  doubled(bound(grad, longest)));
  }
}

// A kernel has one limit of shared memory, for all that is prepared with it.
TEST(CudaGroupedLimit, FewerExpertsLeaveMoreTheirSharedMemory) {
  PLEAT_NEEDS_GPU();
  const auto forward = [](int64_t E, const std::function<void()>& when_prepared) {
    const int64_t rows = 8;
    Tensor x = Tensor::normal(Dtype::BF16, {rows, 64}, 1), w = Tensor::normal(Dtype::BF16, {E, 64, 64}, 2),
           y = Tensor::nan(Dtype::BF16, {rows, 64}), offsets = Tensor::zeros(Dtype::I32, {E + 1});
    for (int64_t e = 1; e <= E; ++e) offsets.set(e, double(rows));
    call_cuda(KernelKind::grouped_linear, Phase::Forward, {in(x), in(w), in(offsets), none(), none(), out(y)},
              {}, when_prepared);
    for (int64_t i = 0; i < y.size(); ++i)
      ASSERT_FALSE(std::isnan(y.at(i))) << E << " experts, element " << i;
  };
  forward(400, [&] { forward(3, {}); });
  try {
    forward(20000, {});
    ADD_FAILURE() << "more experts than shared memory holds were accepted";
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("20000 experts"), std::string::npos) << e.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaGrouped,
                         ::testing::Values(std::pair{Dtype::F32, Dtype::F32},
                                           std::pair{Dtype::BF16, Dtype::F32},
                                           std::pair{Dtype::BF16, Dtype::BF16}));

}  // namespace
}  // namespace pleat::kernels::testing
