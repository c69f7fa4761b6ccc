// cached_attention, cache_append and the kernels of the compressed cache against plain loops in double.
#include <algorithm>
#include <cmath>

#include "kernels/dense_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

struct Shape {
  int64_t sequences, rows, capacity;
  int64_t heads, kv_heads, d, dv;
  int64_t window = 0;
  bool sinks = false;
  bool value_in_key = false;  // as in latent attention
  int64_t key_column() const { return heads * d; }
  int64_t v_column() const { return value_in_key ? 0 : kv_heads * d; }
  int64_t width() const { return value_in_key ? kv_heads * d : kv_heads * (d + dv); }
  int64_t row_width() const { return key_column() + width(); }
  program::AttrSet attrs() const {
    return {{"column", double(key_column())}, {"head_dim", double(d)},   {"heads", double(heads)},
            {"kv_heads", double(kv_heads)},   {"scale", 0.37},           {"v_column", double(v_column())},
            {"v_head_dim", double(dv)},       {"window", double(window)}};
  }
};

// Every sequence as a whole: its rows q | k | v of all positions so far.
struct Text {
  std::vector<std::vector<double>> rows;
};

class Machine {
 public:
  Machine(Dtype dtype, const Shape& s, int threads)
      : s_(s),
        dtype_(dtype),
        threads_(threads),
        cache_(Tensor::nan(dtype, {s.sequences, s.capacity, s.width()})),
        sinks_(Tensor::normal(dtype, {s.heads}, 99)),
        texts_(size_t(s.sequences)) {}

  // Feeds new rows, compares with the whole texts, returns the output.
  Tensor step(const std::vector<int32_t>& num_new, uint64_t seed) {
    Tensor rows = Tensor::normal(dtype_, {s_.sequences * s_.rows, s_.row_width()}, seed);
    Tensor out = Tensor::nan(dtype_, {s_.sequences * s_.rows, s_.heads * s_.dv});
    std::vector<double> lengths, counts(num_new.begin(), num_new.end());
    for (const Text& t : texts_) lengths.push_back(double(t.rows.size()));
    Tensor length = Tensor::of(Dtype::I32, {s_.sequences}, lengths);
    Tensor count = Tensor::of(Dtype::I32, {s_.sequences}, counts);
    call(KernelKind::cached_attention, Phase::Forward,
         {in(rows), in(rows), in(cache_), in(length), in(count), s_.sinks ? in(sinks_) : none(),
          testing::out(out)},
         s_.attrs(), threads_);
    call(KernelKind::cache_append, Phase::Update, {in(rows), in(length), in(count), add(cache_)},
         {{"column", double(s_.key_column())}, {"window", double(s_.window)}}, threads_);
    for (int64_t b = 0; b < s_.sequences; ++b)
      for (int64_t i = 0; i < s_.rows; ++i) {
        const int64_t row = b * s_.rows + i;
        if (i >= num_new[size_t(b)]) {
          for (int64_t c = 0; c < s_.heads * s_.dv; ++c)
            EXPECT_EQ(out.at(row * s_.heads * s_.dv + c), 0) << "padding";
          continue;
        }
        std::vector<double> numbers;
        for (int64_t c = 0; c < s_.row_width(); ++c) numbers.push_back(rows.at(row * s_.row_width() + c));
        texts_[size_t(b)].rows.push_back(std::move(numbers));
        compare(texts_[size_t(b)], out, row);
      }
    return out;
  }

 private:
  // The last row of the text attends to the text.
  void compare(const Text& text, const Tensor& out, int64_t row) const {
    const int64_t n = int64_t(text.rows.size());
    const int64_t low = s_.window > 0 ? std::max<int64_t>(0, n - s_.window) : 0;
    for (int64_t h = 0; h < s_.heads; ++h) {
      const int64_t g = h / (s_.heads / s_.kv_heads);
      std::vector<double> result(size_t(s_.dv), 0.0);
      double sum = s_.sinks ? std::exp(sinks_.at(h)) : 0;
      for (int64_t j = low; j < n; ++j) {
        double dot = 0;
        for (int64_t c = 0; c < s_.d; ++c)
          dot += text.rows.back()[size_t(h * s_.d + c)] *
                 text.rows[size_t(j)][size_t(s_.key_column() + g * s_.d + c)];
        const double p = std::exp(0.37 * dot);
        sum += p;
        for (int64_t c = 0; c < s_.dv; ++c)
          result[size_t(c)] +=
              p * text.rows[size_t(j)][size_t(s_.key_column() + s_.v_column() + g * s_.dv + c)];
      }
      for (int64_t c = 0; c < s_.dv; ++c)
        ASSERT_NEAR(out.at((row * s_.heads + h) * s_.dv + c), result[size_t(c)] / sum,
                    dtype_ == Dtype::F64 ? 1e-12 : 2e-5)
            << "row " << row << " head " << h << " column " << c;
    }
  }

  Shape s_;
  Dtype dtype_;
  int threads_;
  Tensor cache_, sinks_;
  std::vector<Text> texts_;
};

const std::vector<Shape> kShapes = {
    {2, 3, 20, 4, 2, 6, 6},                    // odd widths
    {1, 5, 40, 3, 3, 16, 32},                  // whole vectors, values wider than keys
    {3, 4, 24, 8, 1, 20, 12, 0, false, true},  // one key head whose front is the value
    {2, 3, 5, 4, 2, 6, 6, 5},                  // a ring
    {2, 7, 4, 4, 2, 6, 6, 5},                  // as short as a ring may be, shorter than a call
    {2, 3, 20, 4, 2, 6, 6, 4, true},           // a window in a long cache, sinks
    {1, 3, 20, 4, 4, 6, 6, 1},                 // only itself
    {1, 80, 300, 4, 2, 8, 8, 0, true},         // several blocks of queries and keys
    {1, 90, 70, 2, 1, 8, 8, 70},               // the same through a ring
};

TEST(CachedAttention, EqualsAPlainLoopOverTheWholeText) {
  for (const Shape& s : kShapes)
    for (Dtype dtype : {Dtype::F32, Dtype::F64}) {
      Machine machine(dtype, s, 2);
      const int32_t full = int32_t(s.rows);
      std::vector<int32_t> all(size_t(s.sequences), full), ragged = all, one(size_t(s.sequences), 1);
      for (size_t b = 0; b < ragged.size(); ++b) ragged[b] = int32_t(int64_t(b) % (s.rows + 1));
      ASSERT_NO_FATAL_FAILURE(machine.step(all, 1));
      ASSERT_NO_FATAL_FAILURE(machine.step(ragged, 2));
      for (uint64_t i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(machine.step(one, 3 + i));
      ASSERT_NO_FATAL_FAILURE(machine.step(all, 7));
    }
}

TEST(CachedAttention, BitsDoNotDependOnThreadsOrNeighbours) {
  for (const Shape& s : kShapes) {
    const std::vector<int32_t> counts(size_t(s.sequences), int32_t(s.rows));
    Machine a(Dtype::F32, s, 1), b(Dtype::F32, s, 2), c(Dtype::F32, s, 4);
    for (uint64_t i = 1; i < 3; ++i) {
      const Tensor first = a.step(counts, i);
      EXPECT_EQ(first, b.step(counts, i));
      EXPECT_EQ(first, c.step(counts, i));
    }
  }
}

TEST(CachedAttention, WhatDoesNotFitIsRefused) {
  const auto refused = [](Shape s, std::vector<int32_t> counts, const std::string& word) {
    Machine machine(Dtype::F32, s, 1);
    try {
      machine.step(counts, 1);
      ADD_FAILURE() << "not refused: " << word;
    } catch (const base::Error& e) {
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
    }
  };
  refused({1, 6, 5, 4, 2, 6, 6}, {6}, "the cache holds 5");
  refused({1, 6, 5, 4, 2, 6, 6, 7}, {6}, "the cache holds 5");  // too short to be a ring
  refused({1, 6, 9, 4, 2, 6, 6}, {7}, "new tokens");
  refused({1, 6, 9, 4, 2, 6, 6}, {-1}, "new tokens");
  refused({1, 6, 9, 4, 3, 6, 6}, {1}, "multiple");
  refused({1, 6, 9, 1, 1, 1025, 6}, {1}, "1025");
}

struct Mla {
  int64_t rows = 7, heads = 3, dn = 5, dr = 4, dv = 6, rank = 9;
  bool interleaved = true;
  program::AttrSet attrs() const {
    return {{"heads", double(heads)},
            {"interleaved", interleaved ? 1.0 : 0.0},
            {"nope_dim", double(dn)},
            {"rope_dim", double(dr)},
            {"v_dim", double(dv)}};
  }
};

// The scores and sums of absorbed queries over compressed rows are those of expanded heads: by definition of
// the three kernels, checked factor by factor.
TEST(MlaDecode, EqualsExpandedHeads) {
  for (Dtype dtype : {Dtype::F32, Dtype::F64})
    for (bool interleaved : {false, true}) {
      Mla s;
      s.interleaved = interleaved;
      const double bound = dtype == Dtype::F64 ? 1e-12 : 1e-4;
      Tensor q = Tensor::normal(dtype, {s.rows, s.heads * (s.dn + s.dr)}, 1);
      Tensor w = Tensor::normal(dtype, {s.heads * (s.dn + s.dv), s.rank}, 2);
      Tensor kv = Tensor::normal(dtype, {s.rows, s.rank}, 3), k_pe = Tensor::normal(dtype, {s.rows, s.dr}, 4);
      Tensor cos_sin = Tensor::normal(dtype, {s.rows, s.dr}, 5);
      Tensor expanded = Tensor::nan(dtype, {s.rows, s.heads * (s.dn + s.dv)});
      Tensor packed = Tensor::nan(dtype, {s.rows, s.heads * (2 * (s.dn + s.dr) + s.dv)});
      call(KernelKind::linear, Phase::Forward, {in(kv), in(w), none(), none(), out(expanded)});
      call(KernelKind::mla_pack, Phase::Forward, {in(q), in(expanded), in(k_pe), in(cos_sin), out(packed)},
           s.attrs());
      Tensor absorbed = Tensor::nan(dtype, {s.rows, s.heads * (s.rank + s.dr)});
      Tensor latent = Tensor::nan(dtype, {s.rows, s.rank + s.dr});
      call(KernelKind::mla_absorb, Phase::Forward, {in(q), in(w), in(cos_sin), out(absorbed)}, s.attrs());
      call(KernelKind::mla_latent, Phase::Forward, {in(kv), in(k_pe), in(cos_sin), out(latent)}, s.attrs());
      const int64_t d = s.dn + s.dr, wide = s.heads * (2 * d + s.dv);
      for (int64_t t = 0; t < s.rows; ++t)
        for (int64_t u = 0; u < s.rows; ++u)
          for (int64_t h = 0; h < s.heads; ++h) {
            double plain = 0, compressed = 0;
            for (int64_t c = 0; c < d; ++c)
              plain += packed.at(t * wide + h * d + c) * packed.at(u * wide + s.heads * d + h * d + c);
            for (int64_t c = 0; c < s.rank + s.dr; ++c)
              compressed +=
                  absorbed.at((t * s.heads + h) * (s.rank + s.dr) + c) * latent.at(u * (s.rank + s.dr) + c);
            EXPECT_NEAR(compressed, plain, bound * 10);
          }
      // With the compressed vector itself as what attention summed, the values come out.
      Tensor summed = Tensor::zeros(dtype, {s.rows, s.heads * s.rank});
      for (int64_t t = 0; t < s.rows; ++t)
        for (int64_t h = 0; h < s.heads; ++h)
          for (int64_t c = 0; c < s.rank; ++c)
            summed.set((t * s.heads + h) * s.rank + c, kv.at(t * s.rank + c));
      Tensor values = Tensor::nan(dtype, {s.rows, s.heads * s.dv});
      call(KernelKind::mla_expand, Phase::Forward, {in(summed), in(w), out(values)}, s.attrs());
      for (int64_t t = 0; t < s.rows; ++t)
        for (int64_t c = 0; c < s.heads * s.dv; ++c)
          EXPECT_NEAR(values.at(t * s.heads * s.dv + c), packed.at(t * wide + 2 * s.heads * d + c), bound);
    }
}

TEST(MlaDecode, BitsDoNotDependOnThreadsAndShapesAreChecked) {
  Mla s;
  s.rows = 300;
  Tensor q = Tensor::normal(Dtype::F32, {s.rows, s.heads * (s.dn + s.dr)}, 1);
  Tensor w = Tensor::normal(Dtype::F32, {s.heads * (s.dn + s.dv), s.rank}, 2);
  Tensor cos_sin = Tensor::normal(Dtype::F32, {s.rows, s.dr}, 5);
  Tensor x = Tensor::normal(Dtype::F32, {s.rows, s.heads * s.rank}, 6);
  const auto absorb = [&](int threads) {
    Tensor y = Tensor::nan(Dtype::F32, {s.rows, s.heads * (s.rank + s.dr)});
    call(KernelKind::mla_absorb, Phase::Forward, {in(q), in(w), in(cos_sin), out(y)}, s.attrs(), threads);
    return y;
  };
  const auto expand = [&](int threads) {
    Tensor y = Tensor::nan(Dtype::F32, {s.rows, s.heads * s.dv});
    call(KernelKind::mla_expand, Phase::Forward, {in(x), in(w), out(y)}, s.attrs(), threads);
    return y;
  };
  EXPECT_EQ(absorb(1), absorb(4));
  EXPECT_EQ(expand(1), expand(4));
  s.dv += 1;
  EXPECT_THROW(absorb(1), base::Error);
  EXPECT_THROW(expand(1), base::Error);
}

TEST(TokenScore, LogSoftmaxAndTheMostLikely) {
  for (Dtype dtype : {Dtype::F32, Dtype::F64}) {
    constexpr int64_t kRows = 5, kVocab = 1500;
    Tensor logits = Tensor::normal(dtype, {kRows, kVocab}, 1, 3.0);
    logits.set(2 * kVocab + 7, 50), logits.set(2 * kVocab + 900, 50);  // a tie
    Tensor labels = Tensor::of(Dtype::I32, {kRows}, {0, 1499, 900, 7, 9999});
    Tensor mask = Tensor::of(Dtype::U8, {kRows}, {1, 1, 1, 1, 0});
    const auto run = [&](int threads) {
      std::pair<Tensor, Tensor> y{Tensor::nan(Dtype::F64, {kRows}), Tensor::nan(Dtype::I32, {kRows})};
      call(KernelKind::token_score, Phase::Forward,
           {in(logits), in(labels), in(mask), out(y.first), out(y.second)}, {}, threads);
      return y;
    };
    const auto [log_prob, best] = run(2);
    for (int64_t t = 0; t < 4; ++t) {
      double sum = 0;
      int64_t top = 0;
      for (int64_t v = 0; v < kVocab; ++v) {
        sum += std::exp(logits.at(t * kVocab + v));
        if (logits.at(t * kVocab + v) > logits.at(t * kVocab + top)) top = v;
      }
      EXPECT_NEAR(log_prob.at(t), logits.at(t * kVocab + int64_t(labels.at(t))) - std::log(sum),
                  dtype == Dtype::F64 ? 1e-12 : 1e-6);
      EXPECT_EQ(best.at(t), double(top));
    }
    EXPECT_EQ(best.at(2), 7) << "of equals the lower id";
    EXPECT_EQ(log_prob.at(4), 0);
    EXPECT_EQ(best.at(4), -1);
    EXPECT_EQ(run(1), run(4));
    mask.set(4, 1);
    EXPECT_THROW(run(1), base::Error);
  }
}

}  // namespace
}  // namespace pleat::kernels::testing
