#include "kernels/dense_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

struct Shape {
  int64_t rows, heads, kv_heads, head_dim, rotary_dim;
  bool interleaved, full_norm = false;
  int64_t width() const { return (heads + 2 * kv_heads) * head_dim; }
  int64_t q_size() const { return full_norm ? heads * head_dim : head_dim; }
  int64_t k_size() const { return full_norm ? kv_heads * head_dim : head_dim; }
  int64_t num_norms() const { return full_norm ? 2 : heads + kv_heads; }
  program::AttrSet attrs() const {
    const auto d = [](int64_t x) { return static_cast<double>(x); };
    return {{"eps", 1e-6},
            {"full_norm", full_norm ? 1.0 : 0.0},
            {"head_dim", d(head_dim)},
            {"heads", d(heads)},
            {"interleaved", interleaved ? 1.0 : 0.0},
            {"kv_heads", d(kv_heads)},
            {"rotary_dim", d(rotary_dim)}};
  }
};

Tensor table(Dtype dtype, const Shape& s, double scale = 1.0) {
  Tensor positions = Tensor::zeros(Dtype::I32, {s.rows}),
         inv_freq = Tensor::zeros(Dtype::F64, {s.rotary_dim / 2});
  for (int64_t t = 0; t < s.rows; ++t) positions.set(t, static_cast<double>(t * 3 % 101));
  for (int64_t i = 0; i < inv_freq.size(); ++i)
    inv_freq.set(i, std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(s.rotary_dim)));
  Tensor out_table = Tensor::nan(dtype, {s.rows, s.rotary_dim});
  call(KernelKind::rope_table, Phase::Forward, {in(positions), in(inv_freq), out(out_table)},
       {{"scale", scale}});
  return out_table;
}

TEST(RopeTable, CosinesThenSines) {
  Tensor positions = Tensor::of(Dtype::I32, {3}, {0, 5, 131071}),
         inv_freq = Tensor::of(Dtype::F64, {2}, {1.0, 0.01});
  for (Dtype dtype : {Dtype::F32, Dtype::F64}) {
    Tensor cos_sin = Tensor::nan(dtype, {3, 4});
    call(KernelKind::rope_table, Phase::Forward, {in(positions), in(inv_freq), out(cos_sin)},
         {{"scale", 1.5}});
    for (int64_t t = 0; t < 3; ++t)
      for (int64_t i = 0; i < 2; ++i) {
        const double angle = positions.at(t) * inv_freq.at(i), bound = dtype == Dtype::F32 ? 1e-7 : 1e-15;
        EXPECT_NEAR(cos_sin.at(t * 4 + i), 1.5 * std::cos(angle), 1.5 * bound);
        EXPECT_NEAR(cos_sin.at(t * 4 + 2 + i), 1.5 * std::sin(angle), 1.5 * bound);
      }
  }
  Tensor wrong = Tensor::zeros(Dtype::F32, {3, 2});
  expect_refused(
      [&] {
        call(KernelKind::rope_table, Phase::Forward, {in(positions), in(inv_freq), out(wrong)},
             {{"scale", 1}});
      },
      "[rope_table] argument 'cos_sin' is [3, 2], needed [3, 4]");
}

struct RopeRun {
  Tensor qkv, cos_sin, q_norm, k_norm, dout;
  Tensor out_, rstd, dqkv, dq, dk;
  RopeRun(Dtype dtype, const Shape& s)
      : qkv(Tensor::normal(dtype, {s.rows, s.width()}, 1)),
        cos_sin(table(dtype, s)),
        q_norm(Tensor::normal(dtype, {s.q_size()}, 2)),
        k_norm(Tensor::normal(dtype, {s.k_size()}, 3)),
        dout(Tensor::normal(dtype, {s.rows, s.width()}, 4)),
        out_(Tensor::nan(dtype, {s.rows, s.width()})),
        rstd(Tensor::nan(dtype, {s.rows, s.num_norms()})),
        dqkv(Tensor::nan(dtype, {s.rows, s.width()})),
        dq(Tensor::nan(dtype, {s.q_size()})),
        dk(Tensor::nan(dtype, {s.k_size()})) {}
  void forward(const Shape& s, bool norm, int threads = 2) {
    const auto if_norm = [&](Pass p) { return norm ? p : none(); };
    call(KernelKind::qk_rope, Phase::Forward,
         {in(qkv), in(cos_sin), if_norm(in(q_norm)), if_norm(in(k_norm)), out(out_), if_norm(out(rstd))},
         s.attrs(), threads);
  }
  void backward(const Shape& s, bool norm, int threads = 2) {
    const auto if_norm = [&](Pass p) { return norm ? p : none(); };
    call(KernelKind::qk_rope, Phase::BackwardInput,
         {in(dout), in(cos_sin), if_norm(in(qkv)), if_norm(in(q_norm)), if_norm(in(k_norm)),
          if_norm(in(rstd)), out(dqkv)},
         s.attrs(), threads);
    if (norm) weights(s, out(dq), out(dk), threads);
  }
  void weights(const Shape& s, Pass to_q, Pass to_k, int threads = 2) {
    call(KernelKind::qk_rope, Phase::BackwardWeight, {in(dout), in(cos_sin), in(qkv), in(rstd), to_q, to_k},
         s.attrs(), threads);
  }
};

std::vector<double> expected_forward(const RopeRun& r, const Shape& s, bool norm) {
  std::vector<double> out_numbers = r.qkv.numbers();
  for (int64_t t = 0; t < s.rows; ++t)
    for (int64_t h = 0; h < s.heads + s.kv_heads; ++h) {
      std::vector<double> n;
      for (int64_t i = 0; i < s.head_dim; ++i) n.push_back(r.qkv.at(t * s.width() + h * s.head_dim + i));
      if (norm) {
        const bool is_q = h < s.heads;
        const int64_t size = is_q ? s.q_size() : s.k_size(), first_head = is_q ? 0 : s.heads;
        const int64_t begin = (s.full_norm ? first_head : h) * s.head_dim;
        double squares = 0;
        for (int64_t i = 0; i < size; ++i) squares += std::pow(r.qkv.at(t * s.width() + begin + i), 2);
        for (int64_t i = 0; i < s.head_dim; ++i)
          n[static_cast<size_t>(i)] *=
              (is_q ? r.q_norm : r.k_norm).at(s.full_norm ? (h - first_head) * s.head_dim + i : i) /
              std::sqrt(squares / static_cast<double>(size) + 1e-6);
      }
      double* to = &out_numbers[static_cast<size_t>(t * s.width() + h * s.head_dim)];
      std::copy(n.begin(), n.end(), to);
      for (int64_t i = 0; i < s.rotary_dim / 2; ++i) {
        const int64_t a = s.interleaved ? 2 * i : i, b = s.interleaved ? 2 * i + 1 : s.rotary_dim / 2 + i;
        const double c = r.cos_sin.at(t * s.rotary_dim + i),
                     si = r.cos_sin.at(t * s.rotary_dim + s.rotary_dim / 2 + i);
        to[a] = n[static_cast<size_t>(a)] * c - n[static_cast<size_t>(b)] * si;
        to[b] = n[static_cast<size_t>(b)] * c + n[static_cast<size_t>(a)] * si;
      }
    }
  return out_numbers;
}

struct Case {
  Shape shape;
  bool norm;
};
class QkRope : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Forms, QkRope,
    ::testing::Values(Case{{3, 2, 1, 6, 6, false}, false}, Case{{3, 2, 1, 6, 6, true}, false},
                      Case{{3, 2, 1, 7, 4, false}, true}, Case{{3, 2, 1, 7, 4, true}, true},
                      Case{{2, 1, 1, 5, 0, false}, true}, Case{{4, 4, 2, 10, 10, false}, true},
                      Case{{4, 3, 1, 7, 4, false, true}, true}, Case{{3, 4, 2, 6, 6, true, true}, true},
                      Case{{2, 1, 1, 5, 0, false, true}, true}));

TEST_P(QkRope, AgreesWithPlainLoopsAndDifferences) {
  const auto [s, norm] = GetParam();
  RopeRun r(Dtype::F64, s);
  r.forward(s, norm);
  EXPECT_LE(norm_error(r.out_.numbers(), expected_forward(r, s, norm)), 1e-14);
  r.backward(s, norm);
  const auto f = [&, s = s, norm = norm] {
    r.forward(s, norm);
    return dot(r.out_, r.dout);
  };
  EXPECT_LE(norm_error(r.dqkv.numbers(), numeric_gradient(r.qkv, f)), 1e-6);
  if (!norm) return;
  EXPECT_LE(norm_error(r.dq.numbers(), numeric_gradient(r.q_norm, f)), 1e-6);
  EXPECT_LE(norm_error(r.dk.numbers(), numeric_gradient(r.k_norm, f)), 1e-6);
  f();
  Tensor sum_q = Tensor::normal(Dtype::F64, {s.q_size()}, 7),
         sum_k = Tensor::normal(Dtype::F64, {s.k_size()}, 8);
  const Tensor start_q = sum_q, start_k = sum_k;
  r.weights(s, add(sum_q), add(sum_k));
  for (int64_t i = 0; i < s.q_size(); ++i) EXPECT_NEAR(sum_q.at(i), start_q.at(i) + r.dq.at(i), 1e-13);
  for (int64_t i = 0; i < s.k_size(); ++i) EXPECT_NEAR(sum_k.at(i), start_k.at(i) + r.dk.at(i), 1e-13);
}

TEST(QkRopeKernel, FloatAgreesWithDoubleAndBitsForAnyThreads) {
  for (const Shape& s : {Shape{203, 8, 4, 32, 32, false}, Shape{203, 8, 4, 32, 32, false, true}}) {
    RopeRun wide(Dtype::F64, s), narrow(Dtype::F32, s);
    for (RopeRun* r : {&wide, &narrow}) {
      r->forward(s, true);
      r->backward(s, true);
    }
    EXPECT_LE(norm_error(narrow.out_.numbers(), wide.out_.numbers()), float_bound(1));
    EXPECT_LE(norm_error(narrow.dqkv.numbers(), wide.dqkv.numbers()), float_bound(1));
    EXPECT_LE(norm_error(narrow.dq.numbers(), wide.dq.numbers()), float_bound(1));
    EXPECT_LE(norm_error(narrow.dk.numbers(), wide.dk.numbers()), float_bound(1));
    expect_same_bits([&](int threads) {
      RopeRun r(Dtype::F32, s);
      r.forward(s, true, threads);
      r.backward(s, true, threads);
      return std::vector{r.out_, r.rstd, r.dqkv, r.dq, r.dk};
    });
  }
}

TEST(QkRopeKernel, WidestHeadAndNoTokens) {
  const Shape wide{40, 1, 1, 4096, 4096, true};
  RopeRun r(Dtype::F64, wide);
  r.forward(wide, true);
  EXPECT_LE(norm_error(r.out_.numbers(), expected_forward(r, wide, true)), 1e-13);
  r.backward(wide, true);
  for (double v : r.dk.numbers()) EXPECT_TRUE(std::isfinite(v));
  for (const Shape& empty : {Shape{0, 2, 1, 4, 4, false}, Shape{0, 2, 1, 4, 4, false, true}}) {
    RopeRun none_at_all(Dtype::F32, empty);
    none_at_all.forward(empty, true);
    none_at_all.backward(empty, true);
    for (double v : none_at_all.dq.numbers()) EXPECT_EQ(v, 0.0);
  }
}

TEST(QkRopeKernel, InPlaceWithoutNorms) {
  const Shape s{37, 3, 2, 12, 8, false};
  RopeRun r(Dtype::F32, s);
  r.forward(s, false);
  Tensor same = r.qkv;
  call(KernelKind::qk_rope, Phase::Forward, {in(same), in(r.cos_sin), none(), none(), out(same), none()},
       s.attrs());
  EXPECT_TRUE(same == r.out_);
}

TEST(QkRopeKernel, RefusesBadArguments) {
  Shape s{3, 2, 1, 6, 6, false};
  RopeRun r(Dtype::F32, s);
  Shape odd = s;
  odd.rotary_dim = 5;
  expect_refused([&] { r.forward(odd, false); }, "rotary_dim 5 must be even and at most head_dim 6");
  Shape more = s;
  more.heads = 3;
  expect_refused([&] { r.forward(more, false); }, "[qk_rope] argument 'qkv' is [3, 24], needed [3, 30]");
  expect_refused(
      [&] {
        call(KernelKind::qk_rope, Phase::Forward,
             {in(r.qkv), in(r.cos_sin), in(r.q_norm), none(), out(r.out_), out(r.rstd)}, s.attrs());
      },
      "q_norm, k_norm, rstd must be all present or all absent");
  Shape full = s;
  full.full_norm = true;
  expect_refused([&] { r.forward(full, true); }, "[qk_rope] argument 'q_norm' is [6], needed [12]");
  expect_refused([&] { r.forward(full, false); }, "[qk_rope] full_norm needs q_norm and k_norm");
  expect_refused([&] { r.backward(full, false); }, "[qk_rope] full_norm needs q_norm and k_norm");
  expect_refused([&] { r.weights(full, out(r.dq), out(r.dk)); },
                 "[qk_rope] argument 'rstd' is [3, 3], needed [3, 2]");
  Shape huge = s;
  huge.head_dim = 5000;
  expect_refused([&] { r.forward(huge, false); }, "head_dim 5000 is not between 1 and 4096");
}

}  // namespace
}  // namespace pleat::kernels::testing
