#include "cost/exchange_time.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace pleat::cost {

using namespace program;

namespace {

// Routed values count with the rows of balanced routing, `rows` times as many, and never more than there is room for.
double bytes_of(const Value& v, double rows = 1) {
  const double bytes = static_cast<double>(num_bytes(v));
  if (v.expected_rows == 0 || v.shape.empty() || v.shape[0] == 0) return bytes;
  const double planned = static_cast<double>(v.shape[0]);
  return bytes * std::min(rows * static_cast<double>(v.expected_rows), planned) / planned;
}

double largest_of(const Program& program, const Stage& stage, double rows = 1) {
  double largest = 0;
  for (const Use& use : stage.uses)
    if (use.value != kNoValue)
      largest = std::max(largest, bytes_of(program.values[static_cast<size_t>(use.value)], rows));
  return largest;
}

// Of all windows it writes; what it writes to itself included.
double stored_of(const Program& program, const Stage& stage, double rows = 1) {
  double sum = 0;
  for (const Use& use : stage.uses)
    if (use.value != kNoValue && use.access != Access::Read)
      sum += bytes_of(program.values[static_cast<size_t>(use.value)], rows);
  return sum;
}

// One rank's part of its node's adapters; a small message reaches half of an adapter's rate, not of its part.
double network_flow_ns(const Machine& m, double bytes) {
  return bytes / m.network_gb_s() + m.network.nic.half_kib * 1024 / m.network.nic.gb_s;
}

double hops_ns(const Machine& m, double near_hops, double far_hops) {
  return near_hops * m.node.link.latency_ns() + far_hops * m.network.nic.latency_ns();
}

ExchangeTime scaled(ExchangeTime t, double by) {
  return {t.latency_ns * by, t.link_ns * by, t.network_ns * by};
}

// Bytes for every other rank of a group, without the ramp of single messages.
ExchangeTime spread(const Machine& m, const GroupReach& r, double bytes_each, double half_near,
                    double half_far) {
  const double here = static_cast<double>(r.here), others = static_cast<double>(r.ranks - r.here);
  ExchangeTime t;
  t.latency_ns = r.nodes > 1 ? m.network.nic.latency_ns() : m.node.link.latency_ns();
  t.link_ns = (here - 1) * (bytes_each + half_near) / m.node.link.gb_s;
  t.network_ns = others * (bytes_each / m.network_gb_s() + half_far / m.network.nic.gb_s);
  // On rails a row for another adapter first goes to the rank of this node that has its like.
  if (m.network.rails && here > 1) t.link_ns += others * bytes_each * (here - 1) / here / m.node.link.gb_s;
  return t;
}

}  // namespace

ExchangeTime ring_time(const Machine& m, const GroupReach& r, double bytes) {
  if (r.ranks <= 1) return {};
  const double n = static_cast<double>(r.ranks), nodes = static_cast<double>(r.nodes);
  const double steps = n - 1, here = static_cast<double>(r.here);
  ExchangeTime t;
  t.latency_ns = hops_ns(m, n - nodes, nodes - 1);
  if (r.here > 1 || r.nodes == 1) t.link_ns = m.node.link.flow_ns(steps * bytes / n);
  // As many rings as the node has ranks of the group, each over the part of the network of one of them. What goes round
  // is cut small and follows itself, so the ramp is paid once.
  if (r.nodes > 1) t.network_ns = network_flow_ns(m, steps * bytes / n / here);
  return t;
}

ExchangeTime all_reduce_time(const Machine& m, const GroupReach& r, double bytes) {
  if (r.ranks <= 1) return {};
  const ExchangeTime rings = scaled(ring_time(m, r, bytes), 2);
  if (r.nodes == 1) return rings;
  const double here = static_cast<double>(r.here);
  const double levels = std::ceil(std::log2(static_cast<double>(r.nodes)));
  ExchangeTime tree;
  tree.latency_ns = 2 * hops_ns(m, here - 1, levels);
  if (r.here > 1) tree.link_ns = 2 * m.node.link.flow_ns((here - 1) * bytes / here);
  tree.network_ns = 2 * network_flow_ns(m, bytes / here);
  return tree.total_ns() < rings.total_ns() ? tree : rings;
}

ExchangeTime all_to_all_time(const Machine& m, const GroupReach& r, double bytes) {
  if (r.ranks <= 1) return {};
  return spread(m, r, bytes / static_cast<double>(r.ranks), m.node.link.half_kib * 1024,
                m.network.nic.half_kib * 1024);
}

ExchangeTime message_time(const Machine& m, bool far, double bytes) {
  if (far) return {m.network.nic.latency_ns(), 0, network_flow_ns(m, bytes)};
  return {m.node.link.latency_ns(), m.node.link.flow_ns(bytes), 0};
}

ExchangeTime meeting_time(const Machine& m, const GroupReach& r) {
  if (r.ranks <= 1) return {};
  return {r.nodes > 1 ? m.network.nic.latency_ns() : m.node.link.latency_ns(), 0, 0};
}

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

ExchangeTime exchange_time(const Machine& m, const Reach& reach, const model::Mesh& mesh,
                           const Program& program, const Stage& stage, double rows) {
  const GroupReach& group = reach.groups[static_cast<size_t>(stage.group)];
  if (class_of(stage.op) == OpClass::Transfer) {
    // Its part is the cut of the model, and the cuts of chunks lie on the same ranks.
    const bool far = !reach.far_cuts.empty() &&
                     reach.far_cuts[static_cast<size_t>(stage.part) % reach.far_cuts.size()] != 0;
    return message_time(m, far, largest_of(program, stage, rows));
  }
  if (mesh.size(stage.group) <= 1) return {};
  if (class_of(stage.op) == OpClass::Store) {
    if (group.nodes > 1)
      base::fail(
          "{} stores into the memory of other ranks, and its group of {} lies on {} nodes; needed are groups "
          "inside a node, or parallel.exchange = \"counted\" or \"padded\"",
          stage_name(stage), group.ranks, group.nodes);
    return spread(m, group, stored_of(program, stage, rows) / static_cast<double>(group.ranks), 0, 0);
  }
  const double largest = largest_of(program, stage, rows);
  switch (kernel_of(stage.op)) {
    case KernelKind::all_gather:
    case KernelKind::gather_shards:
    case KernelKind::reduce_scatter:
    case KernelKind::reduce_shards:
      return ring_time(m, group, largest);
    case KernelKind::all_to_all:
    case KernelKind::rows_to_experts:
    case KernelKind::rows_to_tokens:
      return all_to_all_time(m, group, largest);
    case KernelKind::all_reduce:
      return all_reduce_time(m, group, largest);
    case KernelKind::ring_shift:
      return message_time(m, group.nodes > 1, largest);
    case KernelKind::meet:
      return meeting_time(m, group);
    default:
      base::fail_with(base::ExitCode::Internal, "{}: nothing says how long collective {} takes",
                      stage_name(stage), name_of(kernel_of(stage.op)));
  }
}

}  // namespace pleat::cost
