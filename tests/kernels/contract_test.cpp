// Contracts that no single kernel's test sees: what every row of ops.def asks of the uses of its arguments, which
// types may meet whatever a device takes of them, and what a call costs.
#include "kernels/contract.h"

#include "kernels/dense_support.h"

namespace pleat::kernels::testing {
namespace {

using program::AttrSet;
using program::KernelKind;
using program::Phase;
using tensor::Dtype;

// A call that is never run: shapes, types and accesses without data.
class Shapes {
 public:
  Shapes& in(Dtype dtype, std::vector<int64_t> shape) { return add(dtype, shape, program::Access::Read); }
  Shapes& out(Dtype dtype, std::vector<int64_t> shape) { return add(dtype, shape, program::Access::Write); }
  Shapes& update(Dtype dtype, std::vector<int64_t> shape) {
    return add(dtype, shape, program::Access::Update);
  }
  Shapes& none() {
    arguments_.push_back({});
    return *this;
  }

  void check(KernelKind kind, Phase phase, const AttrSet& attrs = {}) const {
    const std::vector<Arg> args = bound(kind, phase);
    check_contract(kind, phase, {args, &attrs, nullptr});
  }
  Work work(KernelKind kind, Phase phase, const AttrSet& attrs = {}) const {
    const std::vector<Arg> args = bound(kind, phase);
    return work_of(kind, phase, {args, &attrs, nullptr});
  }

 private:
  struct Argument {
    Dtype dtype = Dtype::F32;
    std::vector<int64_t> shape;
    program::Access access = program::Access::Read;
    bool present = false;
  };
  Shapes& add(Dtype dtype, std::vector<int64_t>& shape, program::Access access) {
    arguments_.push_back({dtype, std::move(shape), access, true});
    return *this;
  }
  std::vector<Arg> bound(KernelKind kind, Phase phase) const {
    std::vector<Arg> args;
    for (const Argument& a : arguments_) {
      Arg arg;
      if (a.present) arg = {nullptr, a.dtype, a.shape, a.access, true};
      args.push_back(arg);
    }
    name_arguments(args, kind, phase);
    return args;
  }
  std::vector<Argument> arguments_;
};

TEST(Contract, UsesAreThoseOfTheRow) {
  const auto f = Dtype::F32;
  EXPECT_NO_THROW(Shapes().in(f, {3}).out(f, {3}).check(KernelKind::copy, Phase::Forward));
  expect_refused([&] { Shapes().none().out(f, {3}).check(KernelKind::copy, Phase::Forward); },
                 "[copy] argument 'x' is missing");
  expect_refused([&] { Shapes().in(f, {3}).update(f, {3}).check(KernelKind::copy, Phase::Forward); },
                 "[copy] output 'y' can only be overwritten");
  expect_refused([&] { Shapes().in(f, {3}).out(f, {3}).check(KernelKind::add_grad, Phase::BackwardInput); },
                 "[add_grad] argument 'y' is changed in place, so its use must be an update");
  expect_refused([&] { Shapes().in(f, {3}).check(KernelKind::copy, Phase::Forward); },
                 "copy fwd takes 2 arguments, has 1");
  expect_refused([&] { Shapes().in(f, {3}).out(f, {3}).check(KernelKind::copy, Phase::BackwardWeight); },
                 "kernel copy has no phase");
}

TEST(Contract, UsesOfAListAreThoseOfItsArgument) {
  const auto f = Dtype::F32;
  const auto unpack = [](const Shapes& shapes) { shapes.check(KernelKind::unpack_shares, Phase::Update); };
  EXPECT_NO_THROW(unpack(Shapes().in(f, {2, 128}).update(f, {100}).update(f, {100})));
  expect_refused(
      [&] {
        unpack(Shapes().in(f, {2, 128}).update(f, {100}).out(f, {100}));
      },
      "[unpack_shares] argument 'w' is changed in place");
  expect_refused(
      [&] {
        unpack(Shapes().in(f, {2, 128}).none().update(f, {100}));
      },
      "[unpack_shares] argument 'w' is missing");
}

// The router is never narrower than the model, and bf16 goes with f32.
TEST(Contract, RouterTypesBesideComputeTypes) {
  const auto gate = [](Dtype compute, Dtype router) {
    Shapes()
        .in(compute, {3, 4})
        .in(compute, {2, 4})
        .none()
        .out(router, {3, 2})
        .check(KernelKind::router_gate, Phase::Forward);
  };
  for (const auto& [compute, router] : {std::pair{Dtype::BF16, Dtype::F32},
                                        {Dtype::F32, Dtype::F32},
                                        {Dtype::F32, Dtype::F64},
                                        {Dtype::F64, Dtype::F64}})
    EXPECT_NO_THROW(gate(compute, router));
  for (const auto& [compute, router] : {std::pair{Dtype::BF16, Dtype::F64},
                                        {Dtype::BF16, Dtype::BF16},
                                        {Dtype::F32, Dtype::BF16},
                                        {Dtype::F64, Dtype::F32}})
    expect_refused([&, c = compute, r = router] { gate(c, r); }, "is not supported; needed f32/f32");
}

TEST(Contract, StateOfParametersBesideTheirWeight) {
  const AttrSet attrs = {{"beta1", 0.9}, {"beta2", 0.9}, {"eps", 0}, {"weight_decay", 0}, {"lr_mult", 1}};
  const auto update = [&](Dtype g, Dtype w, Dtype m) {
    Shapes()
        .in(g, {5})
        .in(Dtype::F64, {4})
        .in(Dtype::F64, {2})
        .in(Dtype::I32, {1})
        .none()
        .update(w, {5})
        .update(m, {5})
        .update(m, {5})
        .check(KernelKind::adamw, Phase::Update, attrs);
  };
  EXPECT_NO_THROW(update(Dtype::BF16, Dtype::F32, Dtype::F32));
  EXPECT_NO_THROW(update(Dtype::F32, Dtype::F32, Dtype::BF16));
  EXPECT_NO_THROW(update(Dtype::F64, Dtype::F64, Dtype::F64));
  expect_refused([&] { update(Dtype::F32, Dtype::F64, Dtype::F64); },
                 "[adamw] argument 'g' is f32, needed f64");
  expect_refused([&] { update(Dtype::F32, Dtype::F32, Dtype::F64); },
                 "[adamw] argument 'm' is f64, needed f32 or bf16");
}

TEST(Contract, WorkOfACall) {
  const auto b = Dtype::BF16, f = Dtype::F32;
  // 7 tokens of 16 to 4 experts: two flops per multiply-add; x, w and logits once.
  Shapes gate;
  gate.in(b, {7, 16}).in(b, {4, 16}).none().out(f, {7, 4});
  Work work = gate.work(KernelKind::router_gate, Phase::Forward);
  EXPECT_EQ(work.flops, 2.0 * 7 * 16 * 4);
  EXPECT_EQ(work.bytes, 2.0 * (7 * 16 + 4 * 16) + 4.0 * 7 * 4);
  EXPECT_EQ(work.launches, 1);
  // The gradient of a weight is read and written when it is added to; a bias has launches of its own, which read the
  // rows once more.
  Shapes experts;
  experts.in(b, {6, 5}).in(b, {6, 4}).in(Dtype::I32, {3}).none().update(f, {2, 5, 4}).out(f, {2, 5});
  work = experts.work(KernelKind::grouped_linear, Phase::BackwardWeight);
  EXPECT_EQ(work.flops, 2.0 * 6 * 5 * 4);
  EXPECT_EQ(work.bytes, 2.0 * 6 * (5 + 4) + 2.0 * 6 * 5 + 4.0 * 3 + 2 * 4.0 * 2 * 5 * 4 + 4.0 * 2 * 5);
  EXPECT_EQ(work.launches, 2);
}

}  // namespace
}  // namespace pleat::kernels::testing
