#include "cuda/cuda_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

TEST(CudaMtp, ShiftAgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  for (auto [rows, seq_len] : {std::pair{1, 1}, {33, 11}, {4096, 512}})
    for (const int depth : {1, 3})
      for (const bool accumulate : {false, true}) {
        Tensor tokens = Tensor::zeros(Dtype::I32, {rows}), labels = tokens, doc_start = tokens;
        Tensor loss_mask = Tensor::zeros(Dtype::U8, {rows}), valid = loss_mask;
        for (int t = 0; t < rows; ++t) {
          tokens.set(t, t % 97), labels.set(t, (t + 1) % 97);
          doc_start.set(t, t - t % 7), loss_mask.set(t, t % 5 != 0), valid.set(t, t % 41 != 9);
        }
        Tensor ahead = Tensor::nan(Dtype::I32, {rows}), ahead_labels = ahead,
               mask = Tensor::nan(Dtype::U8, {rows});
        Tensor count = Tensor::of(Dtype::I64, {1}, {1000});
        expect_agrees(KernelKind::mtp_shift, Phase::Forward,
                      {in(tokens), in(labels), in(loss_mask), in(valid), in(doc_start), out(ahead),
                       out(ahead_labels), out(mask), accumulate ? add(count) : out(count)},
                      {{"depth", 1.0 * depth}, {"seq_len", 1.0 * seq_len}}, {});
      }
}

TEST(CudaMtp, WeightAgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  for (const double counted : {0.0, 1.0, 12345.0}) {
    Tensor count = Tensor::of(Dtype::I64, {1}, {counted}), norm = Tensor::nan(Dtype::F64, {1});
    expect_agrees(KernelKind::mtp_weight, Phase::Forward, {in(count), out(norm)}, {{"weight", 0.3}}, {});
  }
}

}  // namespace
}  // namespace pleat::kernels::testing
