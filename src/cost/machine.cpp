#include "cost/machine.h"

#include <algorithm>
#include <cmath>

#include "cost/flops.h"

namespace pleat::cost {

using namespace program;

namespace {

// Part of a routed value that balanced routing fills.
double filled(const Value& v) {
  if (v.expected_rows == 0 || v.shape.empty() || v.shape[0] == 0) return 1;
  return static_cast<double>(v.expected_rows) / static_cast<double>(v.shape[0]);
}

double bytes_of(const Value& v) { return static_cast<double>(num_bytes(v)) * filled(v); }

int64_t over(double amount, double per_ns) {
  return per_ns > 0 ? static_cast<int64_t>(std::ceil(amount / per_ns)) : 0;
}

bool is_near(Group group) {
  return group == Group::Tensor || group == Group::Context || group == Group::TensorContext ||
         group == Group::ExpertTensor;
}

}  // namespace

Machine toy_machine() { return {"toy", 3000, 500e3, 3000, {5000, 400}, {10000, 50}}; }

double sent_bytes(const model::Mesh& mesh, const Program& program, const Stage& stage) {
  double largest = 0;
  for (const Use& use : stage.uses)
    if (use.value != kNoValue)
      largest = std::max(largest, bytes_of(program.values[static_cast<size_t>(use.value)]));
  const KernelKind kind = kernel_of(stage.op);
  const double n = static_cast<double>(mesh.size(stage.group));
  if (class_of(stage.op) == OpClass::Transfer) return kind == KernelKind::send ? largest : 0;
  if (class_of(stage.op) != OpClass::Collective || n == 1) return 0;
  if (kind == KernelKind::ring_shift) return largest;
  return (kind == KernelKind::all_reduce ? 2 : 1) * largest * (n - 1) / n;
}

int64_t stage_ns(const Machine& m, const model::Mesh& mesh, const Program& program, const Stage& stage,
                 int64_t seq_len) {
  double largest = 0, sum = 0, full = 1;
  for (const Use& use : stage.uses) {
    if (use.value == kNoValue) continue;
    const Value& v = program.values[static_cast<size_t>(use.value)];
    largest = std::max(largest, bytes_of(v));
    sum += bytes_of(v) * (use.access == program::Access::Update ? 2 : 1);  // is read and written
    full = std::min(full, filled(v));
  }
  switch (class_of(stage.op)) {
    case OpClass::Transfer:
      return m.far.latency_ns + over(largest, m.far.bytes_per_ns);
    case OpClass::Collective: {
      const Link& link = is_near(stage.group) ? m.near : m.far;
      return link.latency_ns + over(sent_bytes(mesh, program, stage), link.bytes_per_ns);
    }
    default:
      return m.launch_ns + std::max(over(stage_flops(program, stage, seq_len) * full, m.flops_per_ns),
                                    over(sum, m.bytes_per_ns));
  }
}

}  // namespace pleat::cost
