// Programs over one memory: what lives across them lies at one place, and a program that would put it elsewhere is
// refused before anything runs.
#include "runtime/runtime.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "device/gpu_fault.h"
#include "program/builder.h"
#include "runtime/two_spaces_support.h"
#include "support/late_carrier.h"
#include "support/refusal.h"

namespace pleat::runtime {
namespace {

using program::Builder;
using program::Life;
using program::Op;
using program::Owner;
using program::r;
using program::w;
using tensor::Dtype;

// y = x w, with a weight of `rows` rows and `extra` bytes of other state in front of it.
program::Program product(const std::string& name, int64_t rows, int64_t extra = 0) {
  Builder b(name);
  b.lane("compute", "compute");
  if (extra > 0) b.value("other", Dtype::U8, {extra}, Owner::Weights, Life::Persistent);
  const auto weight = b.value("weight", Dtype::F32, {rows, 3}, Owner::Weights, Life::Persistent);
  const auto x = b.value("x", Dtype::F32, {2, 3}, Owner::Inputs, Life::Input);
  const auto y = b.value("y", Dtype::F32, {2, rows}, Owner::Results, Life::Result);
  b.at({.microbatch = 0});
  b.forward(Op::head, {r(x), r(weight), program::none(), program::none(), w(y)});
  return b.take();
}

std::vector<Planned> both(program::Program a, program::Program b) {
  std::vector<Planned> out;
  out.push_back(planned(std::move(a)));
  out.push_back(planned(std::move(b)));
  return out;
}

TEST(Runtime, ProgramsShareTheirState) {
  Runtime two(both(product("first", 2), product("second", 2)), {});
  auto* weight = reinterpret_cast<float*>(two.target("weight").bytes.host().data());
  const float numbers[] = {1, 0, 0, 0, 1, 0};
  std::memcpy(weight, numbers, sizeof numbers);
  for (size_t p : {size_t{0}, size_t{1}}) {
    auto* x = static_cast<float*>(two.executor(p).data("x"));
    for (int i = 0; i < 6; ++i) x[i] = static_cast<float>(10 * static_cast<int>(p) + i);
    two.executor(p).run();
    const auto* y = static_cast<const float*>(two.executor(p).data("y"));
    EXPECT_EQ(y[0], x[0]);
    EXPECT_EQ(y[1], x[1]);
    EXPECT_EQ(y[2], x[3]);
  }
}

TEST(Runtime, StateThatLiesElsewhereIsRefused) {
  const auto message = [](program::Program a, program::Program b) {
    return pleat::testing::message_of([&] { Runtime(both(std::move(a), std::move(b)), {}); });
  };
  EXPECT_NE(message(product("first", 2), product("second", 2, 1000)).find("lies elsewhere in program second"),
            std::string::npos);
  EXPECT_EQ(message(product("first", 2, 1000), product("second", 2, 1000)), "");
}

TEST(Runtime, MemoryIsTheLargestPlan) {
  Runtime two(both(product("first", 2), product("second", 2)), {});
  EXPECT_EQ(two.arena().size(), std::max(two.plan(0).arena_bytes, two.plan(1).arena_bytes));
}

TEST(Runtime, OnlyWhatLivesAcrossStepsIsState) {
  Runtime one(product("only", 2), 1);
  ASSERT_EQ(one.targets().size(), 1u);
  EXPECT_EQ(one.targets()[0].name, "weight");
}

TEST(Runtime, StateInTwoSpacesIsSavedAndRestoredWhereItLies) {
  testing::check_state_in_two_spaces(Device::Cpu, {});
  for (const int64_t buffer : {256, 4096, 1 << 20})
    testing::check_state_in_two_spaces(Device::Cpu, [&](auto*, std::span<std::byte> memory) {
      return std::make_unique<pleat::testing::LateCarrier>(memory, buffer);
    });
}

TEST(Runtime, AProgramWithAFaultIsNotBound) {
  program::Program p = product("bad", 2);
  p.stages[0].uses[1].value = program::kNoValue;
  EXPECT_THROW(Runtime(std::move(p), 1), base::Error);
}

TEST(Runtime, AGpuOfAnotherMakeIsRefusedByName) {
  device::cuda::Facts facts;
  facts.name = "NVIDIA A100-SXM4-80GB", facts.major = 8;
  EXPECT_NE(device::gpu_fault(facts).find("NVIDIA A100-SXM4-80GB with compute capability 8.0; needed is 9.0"),
            std::string::npos);
  facts.name = "NVIDIA B200", facts.major = 10;
  EXPECT_NE(device::gpu_fault(facts).find("10.0; needed is 9.0"), std::string::npos);
  facts.name = "NVIDIA H200", facts.major = 9;
  EXPECT_EQ(device::gpu_fault(facts), "");
}

TEST(Runtime, AStepValueOfAnotherTypeIsRefused) {
  Builder b("odd");
  b.lane("compute", "compute");
  const auto x = b.value("loss", Dtype::F32, {2}, Owner::Inputs, Life::Input);
  const auto y = b.value("y", Dtype::F32, {2}, Owner::Results, Life::Result);
  b.at({.microbatch = 0});
  b.forward(Op::copy_in, {r(x), w(y)});
  program::Program p = b.take();
  p.lanes[0].resource = "host_link";
  p.values[static_cast<size_t>(x)].space = program::Space::Pinned;
  Runtime runtime(std::move(p), 1);
  EXPECT_EQ(pleat::testing::message_of([&] { runtime.executor().at(program::step::loss); }),
            "'loss' of program odd has elements f32, needed f64");
  EXPECT_EQ(pleat::testing::message_of([&] { runtime.executor().at(program::step::tokens, 3); }),
            "program odd neither takes nor gives 'mb3.tokens'");
}

}  // namespace
}  // namespace pleat::runtime
