// What each depth of multi-token prediction reads and predicts, against the definition on stated documents.
#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/kernel_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

constexpr int64_t kRows = 20, kLength = 10;

// Two sequences of ten; documents of 4 | 6 and 7 | 2 | 1 tokens; the last two rows of the second are padding.
struct Batch {
  Tensor tokens = Tensor::zeros(Dtype::I32, {kRows}), labels = tokens, doc_start = tokens;
  Tensor loss_mask = Tensor::zeros(Dtype::U8, {kRows}), valid = loss_mask;
  std::vector<int> document = {0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 3, 3, 4};
  std::vector<int> real = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0};

  Batch() {
    for (int64_t t = 0; t < kRows; ++t) {
      int64_t start = t;
      while (start > 0 && start % kLength != 0 && document[size_t(start - 1)] == document[size_t(t)]) --start;
      tokens.set(t, 100.0 + double(t));
      labels.set(t, 101.0 + double(t));
      doc_start.set(t, double(start));
      valid.set(t, real[size_t(t)]);
      const bool last = t % kLength == kLength - 1 || document[size_t(t + 1)] != document[size_t(t)];
      // The label of row 6 is a prompt's: it must not count at any depth.
      loss_mask.set(t, (!last || t == kLength - 1) && real[size_t(t)] && t != 6);
    }
  }
};

struct Shifted {
  Tensor ahead = Tensor::nan(Dtype::I32, {kRows}), labels = ahead, mask = Tensor::nan(Dtype::U8, {kRows}),
         count = Tensor::nan(Dtype::I64, {1});
  bool operator==(const Shifted&) const = default;
};

Shifted shift(Batch& b, int depth, int threads = 2) {
  Shifted s;
  call(KernelKind::mtp_shift, Phase::Forward,
       {in(b.tokens), in(b.labels), in(b.loss_mask), in(b.valid), in(b.doc_start), out(s.ahead),
        out(s.labels), out(s.mask), out(s.count)},
       {{"depth", double(depth)}, {"seq_len", double(kLength)}}, threads);
  return s;
}

}  // namespace

TEST(MtpShift, CountsExactlyTheLabelsOfTheSameDocument) {
  Batch b;
  for (int depth : {1, 2, 3, 9, 10, 30}) {
    const Shifted s = shift(b, depth);
    int64_t counted = 0;
    for (int64_t t = 0; t < kRows; ++t) {
      const int64_t to = t + depth;
      const bool same = to < kRows && to / kLength == t / kLength &&
                        b.document[size_t(to)] == b.document[size_t(t)] && b.real[size_t(to)];
      EXPECT_EQ(s.ahead.at(t), 100.0 + double(same ? to : t)) << depth << " " << t;
      EXPECT_EQ(s.mask.at(t), same && b.loss_mask.at(to) != 0) << depth << " " << t;
      if (s.mask.at(t) != 0) {
        EXPECT_EQ(s.labels.at(t), 101.0 + double(to));
      } else {
        EXPECT_TRUE(s.labels.at(t) == 0 || same) << "a masked label stays harmless";
      }
      counted += s.mask.at(t) != 0;
    }
    EXPECT_EQ(s.count.at(0), double(counted)) << depth;
    EXPECT_TRUE(s == shift(b, depth, 1) && s == shift(b, depth, 4));
  }
  // By hand: depth 1 of documents of 4, 6, 7 and 1 real tokens. Inside one of n tokens row t counts when row
  // t + 1 has a label: n - 2 rows. The document that ends with its sample has a label behind the end, so 5;
  // less the prompt's.
  EXPECT_EQ(shift(b, 1).count.at(0), 2 + 5 - 1 + 5 + 0);
}

TEST(MtpShift, Accumulates) {
  Batch b;
  Shifted s = shift(b, 2);
  const double once = s.count.at(0);
  call(KernelKind::mtp_shift, Phase::Forward,
       {in(b.tokens), in(b.labels), in(b.loss_mask), in(b.valid), in(b.doc_start), out(s.ahead),
        out(s.labels), out(s.mask), add(s.count)},
       {{"depth", 2}, {"seq_len", double(kLength)}});
  EXPECT_EQ(s.count.at(0), 2 * once);
}

TEST(MtpShift, RefusesWhatDoesNotFit) {
  Batch b;
  EXPECT_THROW(shift(b, 0), base::Error);
  Shifted s;
  EXPECT_THROW(call(KernelKind::mtp_shift, Phase::Forward,
                    {in(b.tokens), in(b.labels), in(b.loss_mask), in(b.valid), in(b.doc_start), out(s.ahead),
                     out(s.labels), out(s.mask), out(s.count)},
                    {{"depth", 1}, {"seq_len", 7}}),
               base::Error);
  Tensor narrow = Tensor::zeros(Dtype::U8, {kRows - 1});
  EXPECT_THROW(call(KernelKind::mtp_shift, Phase::Forward,
                    {in(b.tokens), in(b.labels), in(narrow), in(b.valid), in(b.doc_start), out(s.ahead),
                     out(s.labels), out(s.mask), out(s.count)},
                    {{"depth", 1}, {"seq_len", 10}}),
               base::Error);
}

TEST(MtpWeight, IsTheMeanOverWhatWasCounted) {
  Tensor count = Tensor::of(Dtype::I64, {1}, {8}), norm = Tensor::nan(Dtype::F64, {1});
  call(KernelKind::mtp_weight, Phase::Forward, {in(count), out(norm)}, {{"weight", 0.05}});
  EXPECT_DOUBLE_EQ(norm.at(0), 0.05 / 8);
  count.set(0, 0);
  call(KernelKind::mtp_weight, Phase::Forward, {in(count), out(norm)}, {{"weight", 0.05}});
  EXPECT_DOUBLE_EQ(norm.at(0), 0.05);
  EXPECT_THROW(call(KernelKind::mtp_weight, Phase::Forward, {in(count), out(norm)}, {{"weight", 0}}),
               base::Error);
}

}  // namespace pleat::kernels::testing
