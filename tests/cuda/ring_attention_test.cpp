// A ring of ranks on the GPU, step by step as a program runs it, each step against the CPU.
#include <algorithm>
#include <cmath>

#include "cuda/cuda_support.h"
#include "kernels/context_support.h"

namespace pleat::kernels::testing {
namespace {

constexpr int64_t kGroup = 2;

Compare allowed(Dtype type) { return type == Dtype::BF16 ? Compare{0.008, 0.03} : Compare{5e-6, 2e-5}; }

program::AttrSet attrs_of(const Case& c, int64_t step, int64_t ranks) {
  program::AttrSet a = c.attrs();
  a.push_back({"step", double(step)});
  a.push_back({"ranks", double(ranks)});
  a.push_back({"group", double(kGroup)});
  std::sort(a.begin(), a.end(), [](const auto& x, const auto& y) { return x.key < y.key; });
  return a;
}

// One rank: all steps forward, then backward from the GPU's own out and lse.
void expect_rank(const Case& c, Dtype type, Whole& whole, const std::vector<RowList>& lists, int64_t place) {
  const int64_t n = int64_t(lists.size());
  const RowList& list = lists[size_t(place)];
  const int64_t rows = int64_t(list.size());
  std::vector<double> all;
  for (const RowList& l : lists) all.insert(all.end(), l.begin(), l.end());
  Tensor key_row = Tensor::of(Dtype::I32, {int64_t(all.size())}, all);
  Tensor row = Tensor::of(Dtype::I32, {rows}, std::vector<double>(list.begin(), list.end()));
  Tensor coords = Tensor::zeros(Dtype::I64, {program::kNumGroups});
  coords.set(kGroup, double(place));
  Tensor qkv = part_of(whole.qkv, list), dout = part_of(whole.dout, list);
  for (int64_t i = 0; i < rows; ++i)  // only q may be read
    for (int64_t k = c.q_width(); k < c.width(); ++k) qkv.set(i * c.width() + k, NAN);
  const auto kv_of = [&](int64_t step) {
    return part_of(whole.qkv, lists[size_t((place + n - step) % n)], c.q_width(), c.width());
  };

  Tensor out, lse;
  for (int64_t step = 0; step < n; ++step) {
    SCOPED_TRACE(fmt::format("step {}", step));
    Tensor kv = kv_of(step);
    Tensor next = Tensor::nan(step + 1 < n ? Dtype::F32 : type, {rows, c.out_width()});
    Tensor next_lse = Tensor::nan(Dtype::F32, {rows, c.heads});
    expect_agrees(KernelKind::ring_attention, Phase::Forward,
                  {in(qkv), step ? in(out) : none(), step ? in(lse) : none(), in(kv), in(row), in(key_row),
                   in(whole.doc_start), in(coords), step == 0 && c.has_sinks ? in(whole.sinks) : none(),
                   testing::out(next), testing::out(next_lse)},
                  attrs_of(c, step, n), allowed(type));
    if (::testing::Test::HasFatalFailure()) return;
    out = next, lse = next_lse;
  }
  Tensor dq = Tensor::nan(type, {rows, c.q_width()});
  for (int64_t step = 0; step < n; ++step) {
    SCOPED_TRACE(fmt::format("backward of step {}", step));
    Tensor kv = kv_of(step), dkv = Tensor::nan(type, {kv.shape[0], c.kv_width()});
    expect_agrees(KernelKind::ring_attention, Phase::BackwardInput,
                  {in(dout), in(qkv), in(kv), in(out), in(lse), in(row), in(key_row), in(whole.doc_start),
                   in(coords), step ? add(dq) : testing::out(dq), testing::out(dkv)},
                  attrs_of(c, step, n), allowed(type));
    if (::testing::Test::HasFatalFailure()) return;
  }
  if (!c.has_sinks) return;
  for (const bool accumulate : {false, true}) {
    Tensor dsinks = Tensor::normal(Dtype::F32, {c.heads}, 9);
    expect_agrees(
        KernelKind::ring_attention, Phase::BackwardWeight,
        {in(dout), in(out), in(lse), in(whole.sinks), accumulate ? add(dsinks) : testing::out(dsinks)},
        attrs_of(c, 0, n), allowed(type));
  }
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {.documents = {24}},
      {.documents = {1, 9, 2, 12}, .heads = 4, .kv_heads = 2, .d = 5, .dv = 7},
      {.documents = {36, 84}, .heads = 2, .kv_heads = 2, .d = 64, .dv = 48, .window = 7, .has_sinks = true},
      {.documents = {12}, .heads = 3, .kv_heads = 1, .d = 256, .dv = 256, .has_sinks = true},
      {.documents = {48}, .heads = 1, .kv_heads = 1, .d = 192, .dv = 128, .window = 1},
  };
  return all;
}

TEST(CudaRingAttention, EveryStepAgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  for (const Dtype type : {Dtype::F32, Dtype::BF16})
    for (const Case& c : cases())
      for (const int64_t n : {1, 2, 3}) {
        Whole whole(c, type);
        const std::vector<RowList> lists = zigzag(c.rows(), n);
        for (int64_t place = 0; place < n; ++place) {
          SCOPED_TRACE(fmt::format("{}, {} rows, {} heads of {}/{}, window {}, rank {} of {}",
                                   tensor::name_of(type), c.rows(), c.heads, c.d, c.dv, c.window, place, n));
          expect_rank(c, type, whole, lists, place);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
}

// What a step's keys do not show a query stays as it was, bit by bit.
TEST(CudaRingAttention, RowsThatSeeNothingKeepTheirState) {
  PLEAT_NEEDS_GPU();
  const Case c{.documents = {6, 6}};  // rank 0 has the first document, rank 1 the second
  Whole whole(c, Dtype::F32);
  const std::vector<RowList> lists = {{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11}};
  Tensor key_row = Tensor::of(Dtype::I32, {12}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  Tensor row = Tensor::of(Dtype::I32, {6}, {6, 7, 8, 9, 10, 11});
  Tensor coords = Tensor::zeros(Dtype::I64, {program::kNumGroups});
  coords.set(kGroup, 1);
  Tensor qkv = part_of(whole.qkv, lists[1]), kv = part_of(whole.qkv, lists[0], c.q_width(), c.width());
  Tensor prior = Tensor::normal(Dtype::F32, {6, c.out_width()}, 5),
         prior_lse = Tensor::normal(Dtype::F32, {6, c.heads}, 6);
  Tensor out = Tensor::nan(Dtype::F32, prior.shape), lse = Tensor::nan(Dtype::F32, prior_lse.shape);
  call_cuda(KernelKind::ring_attention, Phase::Forward,
            {in(qkv), in(prior), in(prior_lse), in(kv), in(row), in(key_row), in(whole.doc_start), in(coords),
             none(), testing::out(out), testing::out(lse)},
            attrs_of(c, 1, 2));
  EXPECT_TRUE(out == prior);
  EXPECT_TRUE(lse == prior_lse);
}

}  // namespace
}  // namespace pleat::kernels::testing
