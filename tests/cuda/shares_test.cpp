// Copies of bytes: equal to the CPU's, for every width of an element.
#include "program/shares.h"

#include "cuda/cuda_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

constexpr double kGroup = 3;

// More than one launch takes; sizes around a share's alignment, and some smaller than the number of ranks.
std::vector<Tensor> tensors(Dtype dtype) {
  std::vector<Tensor> out;
  uint64_t seed = 1;
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{7}, {1}, {64, 3}, {5, 41}, {1000}, {128}})
    out.push_back(Tensor::normal(dtype, shape, seed++));
  while (out.size() < 70)
    out.push_back(Tensor::normal(dtype, {static_cast<int64_t>(seed % 5) + 1}, seed)), ++seed;
  out.push_back(Tensor::normal(dtype, {300000}, seed));  // more elements than threads
  return out;
}

TEST(CudaShares, PackOwnAndUnpackEqualTheCpu) {
  PLEAT_NEEDS_GPU();
  for (const Dtype dtype : {Dtype::BF16, Dtype::F32, Dtype::F64})
    for (const int64_t n : {1, 2, 3, 4, 8}) {
      SCOPED_TRACE(fmt::format("{} over {} ranks", tensor::name_of(dtype), n));
      std::vector<Tensor> list = tensors(dtype);
      int64_t row = 0;
      for (const Tensor& t : list) row += program::share_stride(t.size(), n);
      Tensor packed = Tensor::nan(dtype, {n, row}), want = packed;
      std::vector<Pass> args;
      for (Tensor& t : list) args.push_back(in(t));
      args.push_back(out(packed));
      call_cuda(KernelKind::pack_shares, Phase::BackwardWeight, args);
      args.back() = out(want);
      call(KernelKind::pack_shares, Phase::BackwardWeight, args);
      EXPECT_TRUE(packed == want);
      for (int64_t r = 0; r < n; ++r) {
        Tensor coords = Tensor::zeros(Dtype::I64, {program::kNumGroups});
        coords.set(static_cast<int64_t>(kGroup), static_cast<double>(r));
        Tensor own = Tensor::nan(dtype, {1, row}), own_want = own;
        std::vector<Pass> own_args = {in(coords)};
        for (Tensor& t : list) own_args.push_back(in(t));
        own_args.push_back(out(own));
        const program::AttrSet attrs = {{"group", kGroup}, {"ranks", static_cast<double>(n)}};
        call_cuda(KernelKind::pack_own, Phase::Update, own_args, attrs);
        own_args.back() = out(own_want);
        call(KernelKind::pack_own, Phase::Update, own_args, attrs);
        EXPECT_TRUE(own == own_want) << "rank " << r;
      }
      std::vector<Tensor> back;
      for (const Tensor& t : list) back.push_back(Tensor::nan(dtype, t.shape));
      std::vector<Pass> unpack = {in(packed)};
      for (Tensor& t : back) unpack.push_back(add(t));
      call_cuda(KernelKind::unpack_shares, Phase::Update, unpack);
      EXPECT_TRUE(back == list);
    }
}

}  // namespace
}  // namespace pleat::kernels::testing
