#include "cost/machine.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "cost/stage_work.h"

namespace pleat::cost {

using namespace program;

namespace {

// Routed values count with the rows of balanced routing.
double bytes_of(const Value& v) {
  const double bytes = static_cast<double>(num_bytes(v));
  if (v.expected_rows == 0 || v.shape.empty() || v.shape[0] == 0) return bytes;
  return bytes * (static_cast<double>(v.expected_rows) / static_cast<double>(v.shape[0]));
}

double largest_of(const Program& program, const Stage& stage) {
  double largest = 0;
  for (const Use& use : stage.uses)
    if (use.value != kNoValue)
      largest = std::max(largest, bytes_of(program.values[static_cast<size_t>(use.value)]));
  return largest;
}

// Of all windows it writes; what it writes to itself included.
double stored_of(const Program& program, const Stage& stage) {
  double sum = 0;
  for (const Use& use : stage.uses)
    if (use.value != kNoValue && use.access != Access::Read)
      sum += bytes_of(program.values[static_cast<size_t>(use.value)]);
  return sum;
}

int64_t over(double amount, double per_ns) {
  return per_ns > 0 ? static_cast<int64_t>(std::ceil(amount / per_ns)) : 0;
}

// Most clusters keep these inside a machine.
bool is_mostly_near(Group group) {
  return group == Group::Tensor || group == Group::Context || group == Group::TensorContext ||
         group == Group::ExpertTensor;
}

const Link& link_of(const Machine& m, const Stage& stage) {
  const bool message = class_of(stage.op) == OpClass::Transfer;
  bool near = !message && is_mostly_near(stage.group);
  if (m.nodes && message)  // its part is the cut of the model, and the cuts of chunks lie on the same ranks
    near = m.nodes->near_cuts[static_cast<size_t>(stage.part) % m.nodes->near_cuts.size()] != 0;
  else if (m.nodes)
    near = m.nodes->near[static_cast<size_t>(stage.group)];
  return near ? m.near : m.far;
}

}  // namespace

Machine toy_machine() { return {"toy", 3000, 500e3, 3000, {5000, 400}, {10000, 50}, {}}; }

double sent_bytes(const model::Mesh& mesh, const Program& program, const Stage& stage) {
  const double largest = largest_of(program, stage);
  const KernelKind kind = kernel_of(stage.op);
  const double n = static_cast<double>(mesh.size(stage.group));
  if (class_of(stage.op) == OpClass::Transfer) return kind == KernelKind::send ? largest : 0;
  if (class_of(stage.op) == OpClass::Store) return stored_of(program, stage) * (n - 1) / n;
  if (class_of(stage.op) != OpClass::Collective || n == 1) return 0;
  const double others = largest * (n - 1) / n;  // all but this rank's part of the larger side
  switch (kind) {
    case KernelKind::all_gather:
    case KernelKind::gather_shards:
    case KernelKind::reduce_scatter:
    case KernelKind::reduce_shards:
    case KernelKind::all_to_all:
    case KernelKind::rows_to_experts:
    case KernelKind::rows_to_tokens:
      return others;
    case KernelKind::all_reduce:  // reduce_scatter and all_gather
      return 2 * others;
    case KernelKind::ring_shift:
      return largest;
    case KernelKind::meet:
      return 0;
    default:
      base::fail_with(base::ExitCode::Internal,
                      "{}: nothing says how many bytes a rank sends in collective {}", stage_name(stage),
                      name_of(kind));
  }
}

int64_t stage_ns(const Machine& m, const model::Mesh& mesh, const Program& program, const Stage& stage) {
  switch (class_of(stage.op)) {
    case OpClass::Transfer: {
      const Link& link = link_of(m, stage);
      return link.latency_ns + over(largest_of(program, stage), link.bytes_per_ns);
    }
    case OpClass::Store:
    case OpClass::Collective: {
      const Link& link = link_of(m, stage);
      return link.latency_ns + over(sent_bytes(mesh, program, stage), link.bytes_per_ns);
    }
    default: {
      const kernels::Work work = stage_work(program, stage, RoutedRows::Balanced);
      const int64_t launches = std::max(work.launches, 1);  // a wait of the host takes its turn too
      return m.launch_ns * launches +
             std::max(over(work.flops, m.flops_per_ns), over(work.bytes, m.bytes_per_ns));
    }
  }
}

}  // namespace pleat::cost
