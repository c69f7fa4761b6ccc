// mla_pack: rows against a plain loop, gradients against differences, and that scores do not depend on the
// order in which rotated numbers are stored.
#include "kernels/dense_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

struct Shape {
  int64_t rows, heads, nope_dim, rope_dim, v_dim;
  bool interleaved;
  int64_t d() const { return nope_dim + rope_dim; }
  int64_t q_width() const { return heads * d(); }
  int64_t kv_width() const { return heads * (nope_dim + v_dim); }
  int64_t width() const { return 2 * q_width() + heads * v_dim; }
  program::AttrSet attrs() const {
    return {{"heads", double(heads)},
            {"interleaved", interleaved ? 1.0 : 0.0},
            {"nope_dim", double(nope_dim)},
            {"rope_dim", double(rope_dim)},
            {"v_dim", double(v_dim)}};
  }
};

Tensor table(Dtype dtype, const Shape& s) {
  Tensor t = Tensor::zeros(dtype, {s.rows, s.rope_dim});
  for (int64_t i = 0; i < s.rows; ++i)
    for (int64_t j = 0; j < s.rope_dim / 2; ++j) {
      const double angle = double(i % 17) * std::pow(100.0, -2.0 * double(j) / double(s.rope_dim));
      t.set(i * s.rope_dim + j, 1.3 * std::cos(angle));
      t.set(i * s.rope_dim + s.rope_dim / 2 + j, 1.3 * std::sin(angle));
    }
  return t;
}

struct PackRun {
  Tensor q, kv, k_pe, cos_sin, dqkv;
  Tensor qkv, dq, dkv, dk_pe;
  PackRun(Dtype dtype, const Shape& s)
      : q(Tensor::normal(dtype, {s.rows, s.q_width()}, 1)),
        kv(Tensor::normal(dtype, {s.rows, s.kv_width()}, 2)),
        k_pe(Tensor::normal(dtype, {s.rows, s.rope_dim}, 3)),
        cos_sin(table(dtype, s)),
        dqkv(Tensor::normal(dtype, {s.rows, s.width()}, 4)),
        qkv(Tensor::nan(dtype, {s.rows, s.width()})),
        dq(Tensor::nan(dtype, {s.rows, s.q_width()})),
        dkv(Tensor::nan(dtype, {s.rows, s.kv_width()})),
        dk_pe(Tensor::nan(dtype, {s.rows, s.rope_dim})) {}
  void forward(const Shape& s, int threads = 2) {
    call(KernelKind::mla_pack, Phase::Forward, {in(q), in(kv), in(k_pe), in(cos_sin), out(qkv)}, s.attrs(),
         threads);
  }
  void backward(const Shape& s, int threads = 2) {
    call(KernelKind::mla_pack, Phase::BackwardInput, {in(dqkv), in(cos_sin), out(dq), out(dkv), out(dk_pe)},
         s.attrs(), threads);
  }
};

std::vector<double> rotated(const PackRun& r, const Shape& s, int64_t t, const Tensor& from, int64_t at) {
  std::vector<double> y(static_cast<size_t>(s.rope_dim));
  for (int64_t i = 0; i < s.rope_dim / 2; ++i) {
    const int64_t a = s.interleaved ? 2 * i : i, b = s.interleaved ? 2 * i + 1 : s.rope_dim / 2 + i;
    const double c = r.cos_sin.at(t * s.rope_dim + i), si = r.cos_sin.at(t * s.rope_dim + s.rope_dim / 2 + i);
    y[size_t(a)] = from.at(at + a) * c - from.at(at + b) * si;
    y[size_t(b)] = from.at(at + b) * c + from.at(at + a) * si;
  }
  return y;
}

std::vector<double> expected(const PackRun& r, const Shape& s) {
  std::vector<double> want;
  for (int64_t t = 0; t < s.rows; ++t) {
    const auto append = [&](const Tensor& from, int64_t at, int64_t count) {
      for (int64_t i = 0; i < count; ++i) want.push_back(from.at(at + i));
    };
    const auto append_rotated = [&](const Tensor& from, int64_t at) {
      const auto y = rotated(r, s, t, from, at);
      want.insert(want.end(), y.begin(), y.end());
    };
    for (int64_t h = 0; h < s.heads; ++h) {
      append(r.q, t * s.q_width() + h * s.d(), s.nope_dim);
      append_rotated(r.q, t * s.q_width() + h * s.d() + s.nope_dim);
    }
    for (int64_t h = 0; h < s.heads; ++h) {
      append(r.kv, t * s.kv_width() + h * (s.nope_dim + s.v_dim), s.nope_dim);
      append_rotated(r.k_pe, t * s.rope_dim);
    }
    for (int64_t h = 0; h < s.heads; ++h)
      append(r.kv, t * s.kv_width() + h * (s.nope_dim + s.v_dim) + s.nope_dim, s.v_dim);
  }
  return want;
}

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {
      {3, 2, 5, 4, 3, false}, {3, 2, 5, 4, 3, true},  {4, 1, 0, 2, 1, false},
      {2, 5, 3, 6, 9, true},  {5, 3, 1, 8, 4, false},
  };
  return all;
}

TEST(MlaPack, AgreesWithPlainLoopsAndDifferences) {
  for (const Shape& s : shapes()) {
    PackRun r(Dtype::F64, s);
    r.forward(s);
    EXPECT_LE(norm_error(r.qkv.numbers(), expected(r, s)), 1e-15);
    r.backward(s);
    const auto loss = [&] {
      r.forward(s);
      return dot(r.qkv, r.dqkv);
    };
    EXPECT_LE(norm_error(r.dq.numbers(), numeric_gradient(r.q, loss)), 1e-6);
    EXPECT_LE(norm_error(r.dkv.numbers(), numeric_gradient(r.kv, loss)), 1e-6);
    EXPECT_LE(norm_error(r.dk_pe.numbers(), numeric_gradient(r.k_pe, loss)), 1e-6);
  }
}

TEST(MlaPack, FloatAgreesWithDoubleAndBitsForAnyThreads) {
  for (bool interleaved : {false, true}) {
    const Shape s{203, 16, 24, 16, 20, interleaved};
    PackRun wide(Dtype::F64, s), narrow(Dtype::F32, s);
    for (PackRun* r : {&wide, &narrow}) {
      r->forward(s);
      r->backward(s);
    }
    EXPECT_LE(norm_error(narrow.qkv.numbers(), wide.qkv.numbers()), float_bound(1));
    EXPECT_LE(norm_error(narrow.dq.numbers(), wide.dq.numbers()), float_bound(1));
    EXPECT_LE(norm_error(narrow.dkv.numbers(), wide.dkv.numbers()), float_bound(1));
    EXPECT_LE(norm_error(narrow.dk_pe.numbers(), wide.dk_pe.numbers()), float_bound(1));
    expect_same_bits([&](int threads) {
      PackRun r(Dtype::F32, s);
      r.forward(s, threads);
      r.backward(s, threads);
      return std::vector{r.qkv, r.dq, r.dkv, r.dk_pe};
    });
  }
}

// What the contract says of implementations that sort even numbers before odd ones and then rotate halves:
// interleaved rotation, or half rotation of sorted inputs, give the same attention.
TEST(MlaPack, SortedHalvesGiveTheSameAttention) {
  const Shape s{9, 2, 3, 6, 4, true};
  Shape halves = s;
  halves.interleaved = false;
  PackRun pairs(Dtype::F64, s), sorted(Dtype::F64, halves);
  const auto sort = [&](Tensor& t, const Tensor& from, int64_t at) {
    for (int64_t i = 0; i < s.rope_dim / 2; ++i) {
      t.set(at + i, from.at(at + 2 * i));
      t.set(at + s.rope_dim / 2 + i, from.at(at + 2 * i + 1));
    }
  };
  for (int64_t t = 0; t < s.rows; ++t) {
    sort(sorted.k_pe, pairs.k_pe, t * s.rope_dim);
    for (int64_t h = 0; h < s.heads; ++h) sort(sorted.q, pairs.q, t * s.q_width() + h * s.d() + s.nope_dim);
  }
  pairs.forward(s);
  sorted.forward(halves);
  Tensor doc_start = Tensor::zeros(Dtype::I32, {s.rows});
  const auto attend = [&](Tensor& qkv) {
    Tensor y = Tensor::nan(Dtype::F64, {s.rows, s.heads * s.v_dim}),
           lse = Tensor::nan(Dtype::F64, {s.rows, s.heads});
    call(KernelKind::attention, Phase::Forward, {in(qkv), in(doc_start), none(), out(y), out(lse)},
         {{"deterministic", 1},
          {"documents", 0},
          {"head_dim", double(s.d())},
          {"heads", double(s.heads)},
          {"kv_heads", double(s.heads)},
          {"scale", 0.3},
          {"seq_len", double(s.rows)},
          {"v_head_dim", double(s.v_dim)},
          {"window", 0}});
    return y.numbers();
  };
  EXPECT_LE(norm_error(attend(pairs.qkv), attend(sorted.qkv)), 1e-14);
}

TEST(MlaPack, NoTokens) {
  const Shape s{0, 2, 4, 4, 4, false};
  PackRun r(Dtype::F32, s);
  r.forward(s);
  r.backward(s);
  EXPECT_EQ(r.qkv.size(), 0);
}

TEST(MlaPack, RefusesWhatDoesNotFit) {
  const Shape s{3, 2, 5, 4, 3, false};
  PackRun r(Dtype::F32, s);
  Shape odd = s;
  odd.rope_dim = 3;
  expect_refused([&] { r.forward(odd); }, "[mla_pack] rope_dim 3 must be even, from 2 to 1024");
  Shape empty = s;
  empty.heads = 0;
  expect_refused([&] { r.forward(empty); },
                 "[mla_pack] heads 0, nope_dim 5, v_dim 3: needed at least 1, 0, 1");
  Shape more = s;
  more.nope_dim = 6;
  expect_refused([&] { r.forward(more); }, "[mla_pack] argument 'q' is [3, 18], needed [3, 20]");
  expect_refused([&] { r.backward(more); }, "[mla_pack] argument 'dqkv' is [3, 42], needed [3, 46]");
  r.k_pe = Tensor::zeros(Dtype::F32, {3, 8});
  expect_refused([&] { r.forward(s); }, "[mla_pack] argument 'k_pe' is [3, 8], needed [3, 4]");
  r.dkv = Tensor::zeros(Dtype::F64, {3, 16});
  expect_refused([&] { r.backward(s); }, "[mla_pack] argument 'dkv' is f64, needed f32");
}

}  // namespace
}  // namespace pleat::kernels::testing
