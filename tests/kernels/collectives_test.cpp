// What collectives ask of their arguments, whatever the group.
#include "kernels/contract.h"
#include "kernels/dense_support.h"

namespace pleat::kernels::testing {
namespace {

using program::Access;
using program::KernelKind;
using program::Phase;
using tensor::Dtype;

struct Described {
  Access access;
  Dtype dtype;
  std::vector<int64_t> shape;
};

void check_call(KernelKind kind, Phase phase, const std::vector<Described>& described,
                const program::AttrSet& attrs = {}) {
  std::vector<Arg> args;
  for (const Described& d : described) args.push_back({nullptr, d.dtype, d.shape, d.access, true});
  name_arguments(args, kind, phase);
  check_contract(kind, phase, {args, &attrs, nullptr});
}

Described read(std::vector<int64_t> shape, Dtype dtype = Dtype::F32) { return {Access::Read, dtype, shape}; }
Described write(std::vector<int64_t> shape, Dtype dtype = Dtype::F32) {
  return {Access::Write, dtype, shape};
}
Described change(std::vector<int64_t> shape, Dtype dtype = Dtype::F32) {
  return {Access::Update, dtype, shape};
}

TEST(Collectives, GatherAndScatterTakeMultiplesOfOneType) {
  for (const Phase phase : {Phase::Forward, Phase::BackwardInput, Phase::Update})
    EXPECT_NO_THROW(check_call(KernelKind::all_gather, phase, {read({3}), write({4, 3})}));
  const auto gather = [](Described x, Described y) {
    check_call(KernelKind::all_gather, Phase::Forward, {x, y});
  };
  expect_refused(
      [&] {
        gather(read({3, 2}), write({7}));
      },
      "[all_gather] argument 'y' has 7 elements, needed a multiple of the 6 of 'x'");
  expect_refused([&] { gather(read({3}), write({6}, Dtype::F64)); },
                 "[all_gather] argument 'y' is f64, needed f32");
  expect_refused([&] { gather(read({3}), change({6})); }, "[all_gather] output 'y' can only be overwritten");
  EXPECT_NO_THROW(gather(read({0, 4}), write({0, 4})));
  expect_refused([&] { gather(read({0, 4}), write({8, 4})); }, "needed a multiple of the 0 of 'x'");
  for (const Phase phase : {Phase::Forward, Phase::BackwardInput}) {
    EXPECT_NO_THROW(check_call(KernelKind::reduce_scatter, phase, {read({6, 2}), write({3, 2})}));
    expect_refused(
        [&] {
          check_call(KernelKind::reduce_scatter, phase, {read({3}), write({2})});
        },
        "[reduce_scatter] argument 'x' has 3 elements, needed a multiple of the 2 of 'y'");
  }
}

TEST(Collectives, WhatTradesPlacesHasOneSize) {
  for (const KernelKind kind : {KernelKind::all_to_all, KernelKind::ring_shift})
    for (const Phase phase : {Phase::Forward, Phase::BackwardInput}) {
      EXPECT_NO_THROW(check_call(kind, phase, {read({4, 3}), write({2, 6})}));
      expect_refused(
          [&] {
            check_call(kind, phase, {read({4, 3}), write({4, 2})});
          },
          "argument 'y' has 8 elements, needed 12 like 'x'");
      expect_refused(
          [&] {
            check_call(kind, phase, {read({4}), write({4}, Dtype::BF16)});
          },
          "argument 'y' is bf16, needed f32");
    }
  EXPECT_NO_THROW(check_call(KernelKind::all_reduce, Phase::Update, {change({4})}));
  expect_refused([] { check_call(KernelKind::all_reduce, Phase::Update, {write({4})}); },
                 "[all_reduce] argument 'x' is changed in place, so its use must be an update");
}

TEST(Collectives, SharesAreAsLongAsTheirAttributeSays) {
  const program::AttrSet four = {{"shard", 4}}, zero = {{"shard", 0}};
  const auto reduce = [&](Described g, Described shard) {
    check_call(KernelKind::reduce_shards, Phase::BackwardWeight, {g, shard}, four);
  };
  EXPECT_NO_THROW(reduce(read({3, 3}), write({4})));
  expect_refused(
      [&] {
        reduce(read({3, 3}), write({5}));
      },
      "[reduce_shards] argument 'shard' has 5 elements, needed 4 as attribute 'shard' says");
  expect_refused(
      [&] {
        reduce(read({3, 3}), write({4}, Dtype::BF16));
      },
      "[reduce_shards] argument 'shard' is bf16, needed f32");
  EXPECT_NO_THROW(check_call(KernelKind::gather_shards, Phase::Update, {change({9})}, four));
  expect_refused([&] { check_call(KernelKind::gather_shards, Phase::Update, {change({9})}, zero); },
                 "[gather_shards] attribute 'shard' is 0, needed 1 or more");
}

TEST(Collectives, RowsGoAsTheOffsetsSay) {
  for (const KernelKind kind : {KernelKind::rows_to_experts, KernelKind::rows_to_tokens}) {
    const auto go = [&](Described x, Described offsets, Described y, double copies = 1) {
      check_call(kind, Phase::Forward, {x, offsets, y}, {{"copies", copies}, {"experts_per_rank", 2}});
    };
    const Described offsets = read({2, 5}, Dtype::I32);
    EXPECT_NO_THROW(go(read({8, 3}), offsets, write({12, 3})));
    EXPECT_NO_THROW(go(read({8}), offsets, write({12})));
    expect_refused(
        [&] {
          go(read({8, 3}), offsets, write({12, 4}));
        },
        "argument 'y' has rows of other sizes than 'x': 4 and 3 in dimension 1");
    expect_refused(
        [&] {
          go(read({8, 3}), offsets, write({12}));
        },
        "argument 'y' has 1 dimensions, needed 2");
    expect_refused(
        [&] {
          go(read({8, 3}), read({2, 5}, Dtype::I64), write({12, 3}));
        },
        "argument 'all_offsets' is i64, needed i32");
    expect_refused(
        [&] {
          go(read({8, 3}), read({5}, Dtype::I32), write({12, 3}));
        },
        "argument 'all_offsets' has 1 dimensions, needed 2");
    expect_refused(
        [&] {
          go(read({8, 3}), offsets, write({12, 3}, Dtype::BF16));
        },
        "argument 'y' is bf16, needed f32");
    expect_refused(
        [&] {
          go(read({8, 3}), offsets, write({12, 3}), 0);
        },
        "experts_per_rank 2 and copies 0: needed 1 or more of each");
  }
}

}  // namespace
}  // namespace pleat::kernels::testing
