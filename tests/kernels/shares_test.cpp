// Shares of several tensors in one message: against the definition, element by element.
#include "program/shares.h"

#include "kernels/dense_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using program::share_of;
using program::share_stride;
using tensor::Dtype;

constexpr double kGroup = 3;

std::vector<Tensor> tensors(Dtype dtype) {
  std::vector<Tensor> out;
  uint64_t seed = 1;
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{7}, {1}, {64, 3}, {5, 41}, {1000}, {128}})
    out.push_back(Tensor::normal(dtype, shape, seed++));
  return out;
}

int64_t row_of(const std::vector<Tensor>& list, int64_t n) {
  int64_t sum = 0;
  for (const Tensor& t : list) sum += share_stride(t.size(), n);
  return sum;
}

// Row r of what should be packed.
std::vector<double> expected_row(const std::vector<Tensor>& list, int64_t n, int64_t rank) {
  std::vector<double> out;
  for (const Tensor& t : list)
    for (int64_t i = 0; i < share_stride(t.size(), n); ++i) {
      const int64_t element = rank * share_of(t.size(), n) + i;
      out.push_back(i < share_of(t.size(), n) && element < t.size() ? t.at(element) : 0.0);
    }
  return out;
}

TEST(Shares, PackOwnAndUnpackAreOneLayout) {
  for (const Dtype dtype : {Dtype::F32, Dtype::F64})
    for (const int64_t n : {1, 2, 3, 8})
      for (const int threads : {1, 2, 4}) {
        SCOPED_TRACE(fmt::format("{} ranks, {} threads", n, threads));
        std::vector<Tensor> list = tensors(dtype);
        const int64_t row = row_of(list, n);
        Tensor packed = Tensor::nan(dtype, {n, row});
        std::vector<Pass> args;
        for (Tensor& t : list) args.push_back(in(t));
        args.push_back(out(packed));
        call(KernelKind::pack_shares, Phase::BackwardWeight, args, {}, threads);
        std::vector<double> want;
        for (int64_t r = 0; r < n; ++r) {
          const std::vector<double> mine = expected_row(list, n, r);
          want.insert(want.end(), mine.begin(), mine.end());
          Tensor coords = Tensor::zeros(Dtype::I64, {program::kNumGroups});
          coords.as<int64_t>()[static_cast<int>(kGroup)] = r;
          Tensor own = Tensor::nan(dtype, {1, row});
          std::vector<Pass> own_args = {in(coords)};
          for (Tensor& t : list) own_args.push_back(in(t));
          own_args.push_back(out(own));
          call(KernelKind::pack_own, Phase::Update, own_args,
               {{"group", kGroup}, {"ranks", static_cast<double>(n)}}, threads);
          EXPECT_EQ(own.numbers(), mine) << "rank " << r;
        }
        EXPECT_EQ(packed.numbers(), want);

        std::vector<Tensor> back;
        for (const Tensor& t : list) back.push_back(Tensor::nan(dtype, t.shape));
        std::vector<Pass> unpack = {in(packed)};
        for (Tensor& t : back) unpack.push_back(add(t));
        call(KernelKind::unpack_shares, Phase::Update, unpack, {}, threads);
        EXPECT_TRUE(back == list);
      }
}

TEST(Shares, SharesBeginWhereTheyCanBeUsed) {
  EXPECT_EQ(share_of(10, 4), 3);
  EXPECT_EQ(share_stride(10, 4), 64);
  EXPECT_EQ(share_stride(4 * 64, 4), 64);
  EXPECT_EQ(share_stride(4 * 64 + 1, 4), 128);
}

TEST(Shares, WhatDoesNotFitIsRefused) {
  Tensor a = Tensor::zeros(Dtype::F32, {100}), b = Tensor::zeros(Dtype::F64, {100});
  Tensor narrow = Tensor::zeros(Dtype::F32, {2, 63}), right = Tensor::zeros(Dtype::F32, {2, 128});
  expect_refused(
      [&] {
        call(KernelKind::pack_shares, Phase::BackwardWeight, {in(a), out(narrow)});
      },
      "[pack_shares] argument 'packed' has rows of 63 elements, needed 64: the shares of 1 tensors over 2 "
      "ranks");
  expect_refused(
      [&] {
        call(KernelKind::pack_shares, Phase::BackwardWeight, {in(a), in(b), out(right)});
      },
      "[pack_shares] argument 'tensor 1' is f64, needed f32");
  expect_refused(
      [&] {
        call(KernelKind::unpack_shares, Phase::Update, {in(narrow), add(a)});
      },
      "[unpack_shares] argument 'packed' has rows of 63 elements");
}

}  // namespace
}  // namespace pleat::kernels::testing
