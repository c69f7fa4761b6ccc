#include "kernels/sigmoid_gate/sigmoid_gate.h"

#include "kernels/dense_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

struct GateRun {
  Tensor x, w, y, dout, out_, dx, dy, dw;
  GateRun(Dtype dtype, int64_t rows, int64_t width)
      : x(Tensor::normal(dtype, {rows, width}, 1)),
        w(Tensor::normal(dtype, {width}, 2, 0.3)),
        y(Tensor::normal(dtype, {rows, width}, 3)),
        dout(Tensor::normal(dtype, {rows, width}, 4)),
        out_(Tensor::nan(dtype, {rows, width})),
        dx(out_),
        dy(out_),
        dw(Tensor::nan(dtype, {width})) {}
  void forward(int threads = 2) {
    call(KernelKind::sigmoid_gate, Phase::Forward, {in(x), in(w), in(y), out(out_)}, {}, threads);
  }
  void backward(int threads = 2) {
    input(out(dx), threads);
    weight(out(dw), threads);
  }
  void input(Pass to, int threads = 2) {
    call(KernelKind::sigmoid_gate, Phase::BackwardInput, {in(dout), in(x), in(w), in(y), to, out(dy)}, {},
         threads);
  }
  void weight(Pass to, int threads = 2) {
    call(KernelKind::sigmoid_gate, Phase::BackwardWeight, {in(dout), in(x), in(w), in(y), to}, {}, threads);
  }
};

TEST(SigmoidGate, ForwardAgreesWithPlainLoops) {
  for (Dtype dtype : {Dtype::F32, Dtype::F64}) {
    const int64_t rows = 201, width = 77;
    GateRun r(dtype, rows, width);
    r.forward();
    std::vector<double> want;
    for (int64_t t = 0; t < rows; ++t) {
      double z = 0;
      for (int64_t j = 0; j < width; ++j) z += r.x.at(t * width + j) * r.w.at(j);
      for (int64_t j = 0; j < width; ++j) want.push_back(r.y.at(t * width + j) / (1 + std::exp(-z)));
    }
    EXPECT_LE(norm_error(r.out_.numbers(), want), dtype == Dtype::F32 ? float_bound(1) : 1e-14);
  }
}

TEST(SigmoidGate, GradientsAgreeWithDifferences) {
  GateRun r(Dtype::F64, 6, 9);
  r.backward();
  const auto f = [&] {
    r.forward();
    return dot(r.out_, r.dout);
  };
  EXPECT_LE(norm_error(r.dx.numbers(), numeric_gradient(r.x, f)), 1e-6);
  EXPECT_LE(norm_error(r.dy.numbers(), numeric_gradient(r.y, f)), 1e-6);
  EXPECT_LE(norm_error(r.dw.numbers(), numeric_gradient(r.w, f)), 1e-6);
  Tensor sum_x = Tensor::normal(Dtype::F64, {6, 9}, 5), sum_w = Tensor::normal(Dtype::F64, {9}, 6);
  const Tensor start_x = sum_x, start_w = sum_w;
  r.input(add(sum_x));
  r.weight(add(sum_w));
  for (int64_t i = 0; i < sum_x.size(); ++i) EXPECT_NEAR(sum_x.at(i), start_x.at(i) + r.dx.at(i), 1e-14);
  for (int64_t i = 0; i < sum_w.size(); ++i) EXPECT_NEAR(sum_w.at(i), start_w.at(i) + r.dw.at(i), 1e-13);
}

TEST(SigmoidGate, MoreTokensThanOneBlock) {
  const int64_t rows = kGateBlock + 300, width = 3;
  GateRun r(Dtype::F64, rows, width);
  r.backward();
  std::vector<double> want(width);
  for (int64_t t = 0; t < rows; ++t) {
    double z = 0, u = 0;
    for (int64_t j = 0; j < width; ++j) {
      z += r.x.at(t * width + j) * r.w.at(j);
      u += r.dout.at(t * width + j) * r.y.at(t * width + j);
    }
    const double s = 1 / (1 + std::exp(-z));
    for (int64_t j = 0; j < width; ++j)
      want[static_cast<size_t>(j)] += u * s * (1 - s) * r.x.at(t * width + j);
  }
  EXPECT_LE(norm_error(r.dw.numbers(), want), 1e-12);
}

TEST(SigmoidGate, FloatAgreesWithDoubleAndBitsForAnyThreads) {
  GateRun wide(Dtype::F64, 203, 131), narrow(Dtype::F32, 203, 131);
  for (Tensor GateRun::*t : {&GateRun::x, &GateRun::w, &GateRun::y, &GateRun::dout})
    wide.*t = as_dtype(narrow.*t, Dtype::F64);
  wide.backward();
  narrow.backward();
  EXPECT_LE(norm_error(narrow.dx.numbers(), wide.dx.numbers()), float_bound(1));
  EXPECT_LE(norm_error(narrow.dy.numbers(), wide.dy.numbers()), float_bound(1));
  EXPECT_LE(norm_error(narrow.dw.numbers(), wide.dw.numbers()), float_bound(1));
  expect_same_bits([&](int threads) {
    GateRun r(Dtype::F32, 203, 131);
    r.forward(threads);
    r.backward(threads);
    return std::vector{r.out_, r.dx, r.dy, r.dw};
  });
}

TEST(SigmoidGate, NoTokensAndBadShapes) {
  GateRun none_at_all(Dtype::F32, 0, 5);
  none_at_all.forward();
  none_at_all.backward();
  for (double v : none_at_all.dw.numbers()) EXPECT_EQ(v, 0.0);
  GateRun r(Dtype::F32, 3, 5);
  r.w = Tensor::zeros(Dtype::F32, {4});
  expect_refused([&] { r.forward(); }, "[sigmoid_gate] argument 'w' is [4], needed [5]");
  expect_refused([&] { r.backward(); }, "[sigmoid_gate] argument 'w' is [4], needed [5]");
}

}  // namespace
}  // namespace pleat::kernels::testing
