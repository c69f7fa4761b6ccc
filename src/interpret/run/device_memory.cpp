#include "interpret/run/device_memory.h"

#include <algorithm>

#include "base/error.h"
#include "device/cuda/context.h"
#include "device/cuda/cuda.h"
#include "kernels/attention/attention_cudnn.h"
#include "kernels/cuda/workspace.h"
#include "program/signature.h"

namespace pleat::interpret {

namespace signature = program::signature;

namespace {

// Of an H200 with CUDA 13: `pleat doctor` prints that of the GPU at hand.
constexpr int64_t kUsualContext = int64_t{539} << 20;

double attribute(const program::Program& p, const program::Stage& stage, std::string_view key) {
  for (const program::Attr& a : p.attrs[static_cast<size_t>(stage.attrs)])
    if (a.key == key) return a.number;
  base::fail_with(base::ExitCode::Internal, "{} has no attribute '{}'", program::stage_name(stage), key);
}

// Backward attention. The own kernels keep one number per row and head, or two (those of Hopper). cuDNN 9
// asks for dq in f32 and one number per row and head, and where query heads share keys for dk and dv of every
// query head in bf16; a second number per row and head is the log-sum-exp in its order. Its deterministic
// form keeps scores instead of dq, at most kMaxScoreBytes of them at a time (what is asked for may be less:
// heads are not cut). Documents have no deterministic form there, and the log-sum-exp stays in its order;
// their list is small.
int64_t attention_workspace(const program::Program& p, const program::Stage& stage) {
  const auto attr = [&](std::string_view key) { return static_cast<int64_t>(attribute(p, stage, key)); };
  const signature::attention::BackwardInput<program::Use> uses(stage.uses);
  const program::Value& dqkv = p.values[static_cast<size_t>(uses.dqkv.value)];
  const int64_t heads = attr("heads"), d = attr("head_dim"), dv = attr("v_head_dim"),
                rows = dqkv.shape[0] * heads;
  const bool documents = attr("documents") != 0, deterministic = attr("deterministic") != 0;
  const bool too_long = kernels::attention::least_score_bytes(heads, attr("kv_heads"), attr("seq_len")) >
                        kernels::attention::kMaxScoreBytes;
  const bool library = dqkv.dtype == tensor::Dtype::BF16 && !(deterministic && (documents || too_long)) &&
                       d % 8 == 0 && dv % 8 == 0;
  if (!library) return (dqkv.dtype == tensor::Dtype::BF16 ? 8 : 4) * rows;
  const int64_t sums =
      deterministic ? std::min(kernels::attention::kMaxScoreBytes, 2 * rows * attr("seq_len")) : 4 * rows * d;
  return sums + (documents ? 4 : 8) * rows + (heads == attr("kv_heads") ? 0 : 2 * rows * (d + dv));
}

int64_t workspace_of(const program::Program& p, const program::Stage& stage) {
  using program::KernelKind;
  using program::Phase;
  using program::Use;
  const auto elements = [&](const Use& use) {
    return program::num_elements(p.values[static_cast<size_t>(use.value)]);
  };
  const auto is = [&](KernelKind kernel, Phase phase) {
    return program::kernel_of(stage.op) == kernel && stage.phase == phase;
  };
  if (program::kernel_of(stage.op) == KernelKind::linear) return kernels::kMatmulWorkspace;
  // Sums over runs of tokens, in the room of a matrix product while one run fits into it.
  if (is(KernelKind::router_gate, Phase::BackwardWeight))
    return 4 * elements(signature::router_gate::BackwardWeight<Use>(stage.uses).dw);
  // Counts of every document's experts, at its first token.
  if (is(KernelKind::router_aux, Phase::BackwardInput) && attribute(p, stage, "seq_coef") != 0) {
    const signature::router_aux::BackwardInput<Use> uses(stage.uses);
    return 4 * (elements(uses.valid) + elements(uses.logits));
  }
  if (is(KernelKind::attention, Phase::BackwardInput)) return attention_workspace(p, stage);
  return 0;
}

std::string gib(int64_t bytes) { return fmt::format("{:.3f} GiB", double(bytes) / double(1 << 30)); }

}  // namespace

DeviceMemory device_memory(const program::Program& program, const Plan& plan) {
  DeviceMemory out;
  out.arena_bytes = plan.arena_bytes;
  std::vector<int64_t> scratch(program.lanes.size(), 0);
  for (const program::Stage& stage : program.stages) {
    int64_t& lane = scratch[static_cast<size_t>(stage.lane)];
    lane = std::max(lane, workspace_of(program, stage));
  }
  for (const int64_t bytes : scratch) out.workspace_bytes += bytes;
  out.context_measured = device::cuda::num_devices() > 0;
  out.context_bytes = out.context_measured ? device::cuda::context_bytes() : kUsualContext;
  return out;
}

std::string describe(const DeviceMemory& m) {
  return fmt::format("arena {} + workspaces {} + context {} ({})", gib(m.arena_bytes), gib(m.workspace_bytes),
                     gib(m.context_bytes),
                     m.context_measured ? "measured on this GPU" : "as on an H200: no GPU here");
}

}  // namespace pleat::interpret
