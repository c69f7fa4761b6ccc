// Attention against a plain double loop, finite differences, and the ways in which packed documents could
// leak.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/kernel_support.h"

namespace pleat::kernels {
namespace {

using namespace testing;
using program::KernelKind;
using program::Phase;
using tensor::Dtype;

struct Case {
  std::vector<int> documents;
  int heads = 2, kv_heads = 1, head_dim = 8;
  int window = 0;
  double scale = 0.4;
  int value_dim = 0;  // 0: head_dim
  bool has_sinks = false;

  int v_head_dim() const { return value_dim ? value_dim : head_dim; }
  int64_t rows() const { return std::accumulate(documents.begin(), documents.end(), int64_t{0}); }
  int64_t width() const { return v_column(kv_heads); }
  int64_t v_column(int64_t g) const { return (heads + kv_heads) * head_dim + g * v_head_dim(); }
  int64_t out_width() const { return static_cast<int64_t>(heads) * v_head_dim(); }
  program::AttrSet attrs() const {
    return {{"deterministic", 1},
            {"documents", 1},
            {"head_dim", double(head_dim)},
            {"heads", double(heads)},
            {"kv_heads", double(kv_heads)},
            {"scale", scale},
            {"seq_len", double(std::max<int64_t>(rows(), 1))},
            {"v_head_dim", double(v_head_dim())},
            {"window", double(window)}};
  }
  Tensor sinks(Dtype dtype) const { return Tensor::normal(dtype, {heads}, 3); }
  Tensor doc_start() const {
    Tensor t = Tensor::zeros(Dtype::I32, {rows()});
    int64_t row = 0;
    for (int length : documents) {
      const int64_t start = row;
      for (int i = 0; i < length; ++i) t.set(row++, static_cast<double>(start));
    }
    return t;
  }
};

struct Result {
  Tensor out, lse, dqkv, dsinks;
  bool operator==(const Result&) const = default;
};

// All phases on NaN-filled outputs.
Result run(const Case& c, Tensor& qkv, Tensor& dout, Tensor& doc_start, int num_threads = 2) {
  const int64_t rows = doc_start.size();
  Result r{Tensor::nan(qkv.dtype, {rows, c.out_width()}), Tensor::nan(qkv.dtype, {rows, c.heads}),
           Tensor::nan(qkv.dtype, {rows, c.width()}), Tensor::zeros(qkv.dtype, {0})};
  Tensor sinks = c.sinks(qkv.dtype);
  call(KernelKind::attention, Phase::Forward,
       {in(qkv), in(doc_start), c.has_sinks ? in(sinks) : none(), out(r.out), out(r.lse)}, c.attrs(),
       num_threads);
  call(KernelKind::attention, Phase::BackwardInput,
       {in(dout), in(qkv), in(r.out), in(r.lse), in(doc_start), out(r.dqkv)}, c.attrs(), num_threads);
  if (c.has_sinks) {
    r.dsinks = Tensor::nan(qkv.dtype, {c.heads});
    call(KernelKind::attention, Phase::BackwardWeight,
         {in(dout), in(r.out), in(r.lse), in(sinks), out(r.dsinks)}, c.attrs(), num_threads);
  }
  return r;
}

Result run(const Case& c, Tensor& qkv, Tensor& dout, int num_threads = 2) {
  Tensor doc_start = c.doc_start();
  return run(c, qkv, dout, doc_start, num_threads);
}

Tensor random_qkv(const Case& c, Dtype dtype, uint64_t seed = 1) {
  return Tensor::normal(dtype, {c.rows(), c.width()}, seed);
}
Tensor random_dout(const Case& c, Dtype dtype, uint64_t seed = 2) {
  return Tensor::normal(dtype, {c.rows(), c.out_width()}, seed);
}

struct Plain {
  std::vector<double> out, lse, dqkv, dsinks;
};

// The definition, with whole rows of probabilities and the softmax gradient written out.
Plain plain(const Case& c, const Tensor& qkv, const Tensor& dout, const Tensor& doc_start) {
  const int64_t rows = doc_start.size(), d = c.head_dim, dv = c.v_head_dim(), w = c.width();
  const std::vector<double> x = qkv.numbers(), dy = dout.numbers();
  Plain r;
  r.out.assign(static_cast<size_t>(rows * c.out_width()), 0);
  r.lse.assign(static_cast<size_t>(rows * c.heads), 0);
  r.dqkv.assign(static_cast<size_t>(rows * w), 0);
  r.dsinks.assign(static_cast<size_t>(c.has_sinks ? c.heads : 0), 0);
  const Tensor sinks = c.sinks(qkv.dtype);
  for (int64_t h = 0; h < c.heads; ++h) {
    const int64_t g = h / (c.heads / c.kv_heads);
    const int64_t qc = h * d, kc = (c.heads + g) * d, vc = c.v_column(g), oc = h * dv;
    for (int64_t i = 0; i < rows; ++i) {
      std::vector<int64_t> seen;
      std::vector<double> p;
      const double sink = c.has_sinks ? std::exp(sinks.at(h)) : 0;
      double total = sink;
      for (int64_t j = 0; j <= i; ++j) {
        if (j < doc_start.at(i) || (c.window > 0 && i - j >= c.window)) continue;
        double s = 0;
        for (int64_t k = 0; k < d; ++k) s += x[size_t(i * w + qc + k)] * x[size_t(j * w + kc + k)];
        seen.push_back(j);
        p.push_back(std::exp(c.scale * s));
        total += p.back();
      }
      r.lse[size_t(i * c.heads + h)] = std::log(total);
      std::vector<double> dp(p.size());
      double mean = 0;
      for (size_t n = 0; n < p.size(); ++n) {
        p[n] /= total;
        for (int64_t k = 0; k < dv; ++k) {
          const double v = x[size_t(seen[n] * w + vc + k)], dyi = dy[size_t(i * c.out_width() + oc + k)];
          r.out[size_t(i * c.out_width() + oc + k)] += p[n] * v;
          r.dqkv[size_t(seen[n] * w + vc + k)] += p[n] * dyi;
          dp[n] += dyi * v;
        }
        mean += p[n] * dp[n];
      }
      if (c.has_sinks) r.dsinks[size_t(h)] -= sink / total * mean;
      for (size_t n = 0; n < p.size(); ++n) {
        const double ds = c.scale * p[n] * (dp[n] - mean);
        for (int64_t k = 0; k < d; ++k) {
          r.dqkv[size_t(i * w + qc + k)] += ds * x[size_t(seen[n] * w + kc + k)];
          r.dqkv[size_t(seen[n] * w + kc + k)] += ds * x[size_t(i * w + qc + k)];
        }
      }
    }
  }
  return r;
}

// Norm-wise, per tensor. Sums are at most rows * heads / kv_heads or head_dim long; rounding grows no faster
// than length.
void expect_plain(const Case& c, Dtype dtype, Tensor doc_start) {
  Tensor qkv = random_qkv(c, dtype), dout = random_dout(c, dtype);
  const Result got = run(c, qkv, dout, doc_start);
  const Plain want = plain(c, qkv, dout, doc_start);
  const double eps = dtype == Dtype::F32 ? 0x1p-23 : 0x1p-52;
  const double length = static_cast<double>(c.rows() * c.heads / c.kv_heads + c.head_dim);
  const double bound = 4 * eps * std::sqrt(length) + 4 * eps;
  EXPECT_LE(norm_error(got.out.numbers(), want.out), bound);
  EXPECT_LE(norm_error(got.lse.numbers(), want.lse), bound);
  EXPECT_LE(norm_error(got.dqkv.numbers(), want.dqkv), bound);
  // Of float: exp(sink - lse) carries the absolute rounding of lse, a few times its norm.
  EXPECT_LE(norm_error(got.dsinks.numbers(), want.dsinks), 8 * bound);
}

std::vector<Case> shapes() {
  return {
      {{1}, 1, 1, 1},
      {{1}, 4, 2, 5},
      {{4, 3}, 2, 1, 5},
      {{5, 1, 9}, 4, 2, 33, 0, 0.17},
      {{1, 1, 1, 1}, 2, 2, 3},
      {{64}, 2, 2, 16},
      {{65, 63, 128}, 2, 1, 32, 0, 0.18},
      {{130}, 6, 2, 7},
      {{15, 16, 17, 31, 33, 47, 49, 64, 65}, 3, 1, 12},
      {{300, 2, 270}, 4, 2, 32, 0, 0.18},
      {{255, 256, 257}, 1, 1, 4},
      {{40}, 2, 1, 128, 0, 0.09},
      {{33}, 1, 1, 256, 0, 0.06},
      // Values narrower and wider than keys, with and without sinks.
      {{5, 1, 9}, 4, 2, 12, 0, 0.4, 7},
      {{65, 63, 128}, 2, 2, 24, 0, 0.2, 16, true},
      {{70, 257, 3}, 4, 2, 5, 0, 0.4, 33, true},
      {{300}, 3, 1, 16, 0, 0.3, 0, true},
      {{40, 2}, 2, 2, 192, 0, 0.07, 128},
      {{33}, 1, 1, 1, 0, 0.4, 256, true},
  };
}

TEST(Attention, MatchesThePlainLoop) {
  for (const Case& c : shapes())
    for (Dtype dtype : {Dtype::F32, Dtype::F64}) {
      SCOPED_TRACE(::testing::Message()
                   << c.rows() << " rows, d " << c.head_dim << ", " << tensor::name_of(dtype));
      expect_plain(c, dtype, c.doc_start());
    }
}

TEST(Attention, WindowsMatchThePlainLoop) {
  for (int window : {1, 2, 7, 16, 63, 64, 65, 100, 257, 5000})
    for (const std::vector<int>& documents : {std::vector<int>{5, 1, 9}, {150, 20, 130}, {600}})
      for (Dtype dtype : {Dtype::F32, Dtype::F64}) {
        SCOPED_TRACE(::testing::Message() << "window " << window << ", " << documents.size() << " documents");
        Case c{documents, 2, 1, 6, window};
        expect_plain(c, dtype, c.doc_start());
        c.value_dim = 10, c.has_sinks = true;
        expect_plain(c, dtype, c.doc_start());
      }
}

// The contract asks only that doc_start never decreases; rows of one segment may start at different places.
TEST(Attention, AnyNonDecreasingDocStart) {
  const Case c{{700}, 2, 1, 6};
  Tensor doc_start = Tensor::zeros(Dtype::I32, {700});
  for (int64_t i = 0; i < 700; ++i)
    doc_start.set(i, static_cast<double>(std::max<int64_t>(0, i - 5 - i / 3) / 4 * 4));
  for (Dtype dtype : {Dtype::F32, Dtype::F64}) expect_plain(c, dtype, doc_start);
}

TEST(Attention, LargeScoresStayFinite) {
  Case c{{70}, 2, 1, 8};
  c.scale = 40;
  Tensor qkv = random_qkv(c, Dtype::F32), dout = random_dout(c, Dtype::F32);
  const Result r = run(c, qkv, dout);
  for (const Tensor* t : {&r.out, &r.lse, &r.dqkv})
    for (double x : t->numbers()) ASSERT_TRUE(std::isfinite(x));
}

TEST(Attention, GradientMatchesFiniteDifferences) {
  for (Case c : {Case{{4, 3}, 2, 1, 3}, Case{{5, 1, 9}, 4, 2, 5}, Case{{9, 30}, 2, 2, 2, 7},
                 Case{{5, 1, 9}, 4, 2, 3, 0, 0.4, 5, true}, Case{{9, 20}, 2, 1, 4, 7, 0.4, 3, true}}) {
    Tensor qkv = random_qkv(c, Dtype::F64), dout = random_dout(c, Dtype::F64), doc_start = c.doc_start(),
           sinks = c.sinks(Dtype::F64);
    const Result r = run(c, qkv, dout);
    Tensor y = Tensor::nan(Dtype::F64, {c.rows(), c.out_width()}),
           lse = Tensor::nan(Dtype::F64, {c.rows(), c.heads});
    const auto loss = [&] {
      call(KernelKind::attention, Phase::Forward,
           {in(qkv), in(doc_start), c.has_sinks ? in(sinks) : none(), out(y), out(lse)}, c.attrs(), 1);
      return dot(y, dout);
    };
    EXPECT_LE(norm_error(r.dqkv.numbers(), numeric_gradient(qkv, loss)), 1e-6);
    if (c.has_sinks) {
      EXPECT_LE(norm_error(r.dsinks.numbers(), numeric_gradient(sinks, loss)), 1e-6);
    }
  }
}

// Rows [begin, end) of a 2-d tensor.
Tensor rows_of(const Tensor& t, int64_t begin, int64_t end) {
  Tensor part = Tensor::zeros(t.dtype, {end - begin, t.shape[1]});
  for (int64_t i = 0; i < part.size(); ++i) part.set(i, t.at(begin * t.shape[1] + i));
  return part;
}

TEST(Attention, PackedEqualsOneByOneBitForBit) {
  for (int window : {0, 6})
    for (const std::vector<int>& documents :
         {std::vector<int>{4, 3}, {5, 1, 9}, {70, 257, 1, 3, 300, 64, 40}}) {
      const Case c{documents, 4, 2, 20, window, 0.4, 13, true};
      for (Dtype dtype : {Dtype::F32, Dtype::F64}) {
        Tensor qkv = random_qkv(c, dtype), dout = random_dout(c, dtype);
        const Result packed = run(c, qkv, dout);
        int64_t row = 0;
        for (int length : documents) {
          Case alone = c;
          alone.documents = {length};
          Tensor x = rows_of(qkv, row, row + length), dy = rows_of(dout, row, row + length);
          const Result r = run(alone, x, dy);
          EXPECT_EQ(rows_of(packed.out, row, row + length), r.out);
          EXPECT_EQ(rows_of(packed.lse, row, row + length), r.lse);
          EXPECT_EQ(rows_of(packed.dqkv, row, row + length), r.dqkv);
          row += length;
        }
      }
    }
}

// Changing one token of document 1 reaches its own later positions and no bit of any other document. NaN is
// the sharpest change: a product with a masked zero would carry it.
TEST(Attention, DocumentsDoNotLeak) {
  for (const std::vector<int>& documents : {std::vector<int>{4, 3}, {5, 1, 9}, {5, 9, 1, 60, 3}})
    for (double change : {1.0, std::nan("")})
      for (Dtype dtype : {Dtype::F32, Dtype::F64}) {
        const Case c{documents, 2, 1, 5};
        Tensor qkv = random_qkv(c, dtype), dout = random_dout(c, dtype);
        const Result before = run(c, qkv, dout);
        const int64_t start = documents[0], end = start + documents[1];
        for (int64_t k = 0; k < c.width(); ++k)
          qkv.set(start * c.width() + k, qkv.at(start * c.width() + k) + change);
        for (int64_t k = 0; k < c.out_width(); ++k)
          dout.set(start * c.out_width() + k, dout.at(start * c.out_width() + k) + change);
        const Result after = run(c, qkv, dout);
        for (int64_t i = 0; i < c.rows(); ++i) {
          const bool own = i >= start && i < end;
          EXPECT_EQ(rows_of(before.out, i, i + 1) == rows_of(after.out, i, i + 1), !own) << "row " << i;
          EXPECT_EQ(rows_of(before.lse, i, i + 1) == rows_of(after.lse, i, i + 1), !own) << "row " << i;
          EXPECT_EQ(rows_of(before.dqkv, i, i + 1) == rows_of(after.dqkv, i, i + 1), !own) << "row " << i;
        }
      }
}

TEST(Attention, LaterTokensDoNotReachEarlierOutputs) {
  const Case c{{100}, 2, 1, 5};
  Tensor qkv = random_qkv(c, Dtype::F32), dout = random_dout(c, Dtype::F32);
  const Result before = run(c, qkv, dout);
  const int64_t changed = 70;
  for (int64_t k = 0; k < c.width(); ++k) qkv.set(changed * c.width() + k, 3.0);
  const Result after = run(c, qkv, dout);
  for (int64_t i = 0; i < c.rows(); ++i)
    EXPECT_EQ(rows_of(before.out, i, i + 1) == rows_of(after.out, i, i + 1), i < changed) << "row " << i;
}

TEST(Attention, SameBitsForAnyNumberOfThreads) {
  for (Case c : {Case{{300, 2, 270, 64, 1, 513}, 4, 2, 32}, Case{{900}, 2, 1, 33, 400}, Case{{900}, 2, 1, 16},
                 Case{{300, 2, 270}, 4, 2, 24, 0, 0.2, 16, true}})
    for (Dtype dtype : {Dtype::F32, Dtype::F64}) {
      Tensor qkv = random_qkv(c, dtype), dout = random_dout(c, dtype);
      const Result one = run(c, qkv, dout, 1);
      EXPECT_EQ(one, run(c, qkv, dout, 2));
      EXPECT_EQ(one, run(c, qkv, dout, 4));
    }
}

TEST(Attention, NoRows) {
  const Case c{{}, 2, 1, 8, 0, 0.4, 0, true};
  Tensor qkv = random_qkv(c, Dtype::F32), dout = random_dout(c, Dtype::F32);
  const Result r = run(c, qkv, dout);
  EXPECT_EQ(r.dqkv.size(), 0);
  EXPECT_EQ(r.dsinks.numbers(), (std::vector<double>{0, 0}));
}

TEST(Attention, SinkGradientsAccumulate) {
  const Case c{{40, 2}, 3, 1, 8, 0, 0.4, 6, true};
  for (Dtype dtype : {Dtype::F32, Dtype::F64}) {
    Tensor qkv = random_qkv(c, dtype), dout = random_dout(c, dtype), sinks = c.sinks(dtype);
    Result r = run(c, qkv, dout);
    Tensor sum = Tensor::normal(dtype, {c.heads}, 9);
    const Tensor start = sum;
    call(KernelKind::attention, Phase::BackwardWeight, {in(dout), in(r.out), in(r.lse), in(sinks), add(sum)},
         c.attrs());
    for (int64_t h = 0; h < c.heads; ++h)
      EXPECT_NEAR(sum.at(h), start.at(h) + r.dsinks.at(h), (dtype == Dtype::F32 ? 1e-6 : 1e-14) * 10);
  }
}

// A sink far below every score changes nothing, one far above takes everything, and NaN is not swallowed.
TEST(Attention, ExtremeSinks) {
  const Case with{{50, 20}, 2, 1, 8, 0, 0.4, 6, true}, without{{50, 20}, 2, 1, 8, 0, 0.4, 6, false};
  for (Dtype dtype : {Dtype::F32, Dtype::F64}) {
    Tensor qkv = random_qkv(with, dtype), dout = random_dout(with, dtype), doc_start = with.doc_start();
    const Result plain_softmax = run(without, qkv, dout);
    const auto forward = [&](double sink) {
      Tensor sinks = Tensor::of(dtype, {2}, {sink, sink});
      Tensor y = Tensor::nan(dtype, {70, 12}), lse = Tensor::nan(dtype, {70, 2});
      call(KernelKind::attention, Phase::Forward, {in(qkv), in(doc_start), in(sinks), out(y), out(lse)},
           with.attrs());
      return std::pair{y, lse};
    };
    for (double low : {-1000.0, -double{INFINITY}}) {
      EXPECT_EQ(forward(low).first, plain_softmax.out);
      EXPECT_EQ(forward(low).second, plain_softmax.lse);
    }
    const auto [y, lse] = forward(5000);
    for (double v : y.numbers()) EXPECT_EQ(v, 0);
    for (double v : lse.numbers()) EXPECT_EQ(v, 5000);
    for (double v : forward(NAN).first.numbers()) EXPECT_TRUE(std::isnan(v));
  }
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const base::Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Attention, RefusesWhatDoesNotFit) {
  const Case good{{4, 3}, 4, 2, 8};
  const auto refusal = [&](Case c, auto change) {
    Tensor qkv = random_qkv(good, Dtype::F32), doc_start = good.doc_start();
    Tensor y = Tensor::zeros(Dtype::F32, {7, 32}), lse = Tensor::zeros(Dtype::F32, {7, 4});
    change(qkv, doc_start, y, lse);
    return message_of([&] {
      call(KernelKind::attention, Phase::Forward, {in(qkv), in(doc_start), none(), out(y), out(lse)},
           c.attrs());
    });
  };
  const auto nothing = [](Tensor&, Tensor&, Tensor&, Tensor&) {};
  EXPECT_EQ(refusal(good, nothing), "no error");
  Case c = good;
  c.kv_heads = 3;
  EXPECT_EQ(refusal(c, nothing), "[attention] heads 4 and kv_heads 3: needed a positive multiple");
  c = good;
  c.head_dim = 300;
  EXPECT_EQ(refusal(c, nothing), "[attention] head_dim is 300, needed 1 to 256");
  c = good;
  c.value_dim = 257;
  EXPECT_EQ(refusal(c, nothing), "[attention] v_head_dim is 257, needed 1 to 256");
  c = good;
  c.value_dim = 6;
  EXPECT_EQ(refusal(c, nothing), "[attention] argument 'qkv' is [7, 64], needed [7, 60]");
  c = good;
  c.head_dim = 9;
  EXPECT_EQ(refusal(c, nothing), "[attention] argument 'qkv' is [7, 64], needed [7, 72]");
  c = good;
  c.window = -1;
  EXPECT_EQ(refusal(c, nothing), "[attention] window is -1, needed 0 (none) or more");
  c = good;
  c.scale = std::nan("");
  EXPECT_EQ(refusal(c, nothing), "[attention] scale is nan, needed a finite number");
  c = good;
  c.documents = {5};
  EXPECT_EQ(refusal(c, nothing), "[attention] 7 rows are not whole sequences of 5");
  EXPECT_EQ(refusal(good, [](auto&, Tensor& s, auto&, auto&) { s = Tensor::zeros(Dtype::I32, {6}); }),
            "[attention] argument 'doc_start' is [6], needed [7]");
  EXPECT_EQ(refusal(good, [](auto&, Tensor& s, auto&, auto&) { s = Tensor::zeros(Dtype::I64, {7}); }),
            "[attention] argument 'doc_start' is i64, needed i32");
  EXPECT_EQ(refusal(good,
                    [](auto&, auto&, auto&, Tensor& l) {
                      l = Tensor::zeros(Dtype::F32, {7, 2});
                    }),
            "[attention] argument 'lse' is [7, 2], needed [7, 4]");
  EXPECT_EQ(refusal(good,
                    [](auto&, auto&, Tensor& y, auto&) {
                      y = Tensor::zeros(Dtype::F64, {7, 32});
                    }),
            "[attention] argument 'out' is f64, needed f32");

  Tensor qkv = random_qkv(good, Dtype::F32), dout = random_dout(good, Dtype::F32),
         doc_start = good.doc_start();
  Result r = run(good, qkv, dout);
  EXPECT_EQ(message_of([&] {
              call(KernelKind::attention, Phase::BackwardInput,
                   {in(dout), in(qkv), in(r.out), in(r.lse), in(doc_start), add(r.dqkv)}, good.attrs());
            }),
            "[attention] output 'dqkv' can only be overwritten");
  r.dqkv = Tensor::zeros(Dtype::F32, {7, 32});
  EXPECT_EQ(message_of([&] {
              call(KernelKind::attention, Phase::BackwardInput,
                   {in(dout), in(qkv), in(r.out), in(r.lse), in(doc_start), out(r.dqkv)}, good.attrs());
            }),
            "[attention] argument 'dqkv' is [7, 32], needed [7, 64]");

  Tensor three = Tensor::zeros(Dtype::F32, {3}), wide = Tensor::zeros(Dtype::F64, {4}),
         four = Tensor::zeros(Dtype::F32, {4});
  const auto forward = [&](Tensor& sinks) {
    return message_of([&] {
      call(KernelKind::attention, Phase::Forward, {in(qkv), in(doc_start), in(sinks), out(r.out), out(r.lse)},
           good.attrs());
    });
  };
  EXPECT_EQ(forward(three), "[attention] argument 'sinks' is [3], needed [4]");
  EXPECT_EQ(forward(wide), "[attention] argument 'sinks' is f64, needed f32");
  const auto weight = [&](Tensor& sinks, Tensor& dsinks) {
    return message_of([&] {
      call(KernelKind::attention, Phase::BackwardWeight,
           {in(dout), in(r.out), in(r.lse), in(sinks), out(dsinks)}, good.attrs());
    });
  };
  EXPECT_EQ(weight(four, four), "no error");
  EXPECT_EQ(weight(three, four), "[attention] argument 'sinks' is [3], needed [4]");
  EXPECT_EQ(weight(four, three), "[attention] argument 'dsinks' is [3], needed [4]");
  EXPECT_EQ(weight(four, wide), "[attention] argument 'dsinks' is f64, needed f32 or bf16");
}

TEST(AttentionDeathTest, DocStartThatDecreasesOrLooksAhead) {
  const Case c{{3}, 1, 1, 2};
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const std::vector<double>& starts : {std::vector<double>{0, 1, 0}, {0, 2, 2}, {-1, 0, 0}}) {
    Tensor qkv = random_qkv(c, Dtype::F32), dout = random_dout(c, Dtype::F32);
    Tensor doc_start = Tensor::of(Dtype::I32, {3}, starts);
    EXPECT_DEATH(run(c, qkv, dout, doc_start, 1), "doc_start\\[");
  }
}

}  // namespace
}  // namespace pleat::kernels
