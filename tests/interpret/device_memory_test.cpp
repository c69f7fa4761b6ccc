// What a step takes on a GPU outside its arena.
#include "interpret/run/device_memory.h"

#include <gtest/gtest.h>

#include "device/cuda/cuda.h"
#include "kernels/cuda/workspace.h"
#include "program/builder.h"

namespace pleat::interpret {
namespace {

using program::none;
using program::r;
using program::w;

TEST(DeviceMemory, EveryLanePaysForItsMostDemandingStage) {
  program::Builder b("step");
  const auto value = [&](const char* name, std::vector<int64_t> shape) {
    return b.value(name, tensor::Dtype::BF16, std::move(shape), program::Owner::Activations,
                   program::Life::Persistent);
  };
  const auto x = value("x", {8, 16}), weight = value("w", {16, 16});
  const int side = b.lane("side", "compute");
  for (int i = 0; i < 2; ++i) {
    b.at({0, i});
    b.forward(
        program::Op::qkv,
        {r(x), r(weight), none(), none(),
         w(b.value("y" + std::to_string(i), tensor::Dtype::BF16, {8, 16}, program::Owner::Activations))});
  }
  Plan made = plan(b.program());
  made.arena_bytes = 1000;
  DeviceMemory one = device_memory(b.program(), made);
  EXPECT_EQ(one.workspace_bytes, kernels::kMatmulWorkspace);
  EXPECT_EQ(one.total(), 1000 + one.workspace_bytes + one.context_bytes);
  EXPECT_GT(one.context_bytes, 0);
  EXPECT_EQ(one.context_measured, device::cuda::num_devices() > 0);
  EXPECT_NE(describe(one).find(one.context_measured ? "measured" : "no GPU here"), std::string::npos);
  b.at({0, 2}, side);
  b.forward(program::Op::shared_up,
            {r(x), r(weight), none(), none(),
             w(b.value("z", tensor::Dtype::BF16, {8, 16}, program::Owner::Activations))});
  EXPECT_EQ(device_memory(b.program(), made).workspace_bytes, 2 * kernels::kMatmulWorkspace);

  // Attention's backward: a float32 copy of the gradient and one number per row and head.
  program::Builder attention("attention");
  const auto at = [&](const char* name, tensor::Dtype dtype, std::vector<int64_t> shape) {
    return attention.value(name, dtype, std::move(shape), program::Owner::Activations,
                           program::Life::Persistent);
  };
  const int64_t rows = 1 << 16, heads = 8, width = 3 * 8 * 64;
  using tensor::Dtype;
  const auto dqkv = attention.value("dqkv", Dtype::BF16, {rows, width}, program::Owner::Activations);
  attention.at({0, 0});
  attention.dgrad(program::Op::attention,
                  {r(at("dout", Dtype::BF16, {rows, heads * 64})), r(at("qkv", Dtype::BF16, {rows, width})),
                   r(at("out", Dtype::BF16, {rows, heads * 64})), r(at("lse", Dtype::F32, {rows, heads})),
                   r(at("doc_start", Dtype::I32, {rows})), w(dqkv)});
  EXPECT_EQ(device_memory(attention.program(), plan(attention.program())).workspace_bytes,
            4 * rows * (width + heads));
}

}  // namespace
}  // namespace pleat::interpret
