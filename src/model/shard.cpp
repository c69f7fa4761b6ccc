#include "model/shard.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"
#include "program/shares.h"

namespace pleat::model {
namespace {

int64_t ranks_along(const Mesh& mesh, Axis axis) {
  switch (axis) {
    case Axis::Tensor:
      return mesh.tp;
    case Axis::Expert:
      return mesh.ep;
    case Axis::ExpertTensor:
      return mesh.etp;
    default:
      return 1;
  }
}

int64_t place_along(const Place& place, Axis axis) {
  switch (axis) {
    case Axis::Tensor:
      return place.tensor;
    case Axis::Expert:
      return place.expert;
    case Axis::ExpertTensor:
      return place.expert_tensor;
    default:
      return 0;
  }
}

const char* axis_key(Axis axis) {
  return axis == Axis::Tensor ? "parallel.tp" : axis == Axis::Expert ? "parallel.ep" : "parallel.etp";
}

// The pieces of one dimension, in physical order: its blocks, or all of it.
std::vector<Block> pieces_of(const Parameter& p, int64_t dim) {
  std::vector<Block> out;
  for (const Block& b : p.blocks)
    if (b.dim == dim) out.push_back(b);
  if (out.empty()) out.push_back({"", dim, 0, p.shape[static_cast<size_t>(dim)]});
  return out;
}

// Half-open ranges of one dimension a rank holds, in its own order.
std::vector<std::pair<int64_t, int64_t>> ranges_of(const Parameter& p, int64_t dim, const Mesh& mesh,
                                                   const Place& place) {
  for (const Shard& s : p.sharded) {
    if (s.dim != dim) continue;
    const int64_t n = ranks_along(mesh, s.axis), at = place_along(place, s.axis);
    if (n == 1) break;
    std::vector<std::pair<int64_t, int64_t>> out;
    for (const Block& b : pieces_of(p, dim)) {
      if (p.pads) {
        const int64_t part = base::ceil_div(b.size, n);
        out.emplace_back(b.begin + std::min(at * part, b.size), b.begin + std::min((at + 1) * part, b.size));
        continue;
      }
      if (b.size % n != 0)
        base::fail("{}: {} of {} does not divide the {} rows or columns{} of dimension {}", p.name,
                   axis_key(s.axis), n, b.size, b.name.empty() ? "" : " of " + b.name, dim);
      const int64_t part = b.size / n;
      out.emplace_back(b.begin + at * part, b.begin + (at + 1) * part);
    }
    return out;
  }
  return {{0, p.shape[static_cast<size_t>(dim)]}};
}

}  // namespace

std::vector<int64_t> local_shape(const Parameter& p, const Mesh& mesh) {
  std::vector<int64_t> out;
  for (size_t dim = 0; dim < p.shape.size(); ++dim) {
    int64_t size = 0;
    // The first rank has its full part: padding falls on the last ones.
    for (const auto& [begin, end] : ranges_of(p, static_cast<int64_t>(dim), mesh, {})) size += end - begin;
    out.push_back(size);
  }
  return out;
}

std::vector<Run> local_runs(const Parameter& p, const Mesh& mesh, const Place& place) {
  // From the last dimension outwards: runs of the inner dimensions repeat for every index of this one, and
  // grow together where a dimension is held whole.
  std::vector<Run> runs = {{0, 0, 1}};
  int64_t logical_stride = 1, local_stride = 1;
  for (size_t dim = p.shape.size(); dim-- > 0;) {
    std::vector<Run> next;
    int64_t local_idx = 0;
    const auto ranges = ranges_of(p, static_cast<int64_t>(dim), mesh, place);
    for (const auto& [begin, end] : ranges) {
      const bool dense = runs.size() == 1 && runs[0].count == logical_stride && runs[0].count == local_stride;
      if (dense) {
        next.push_back({begin * logical_stride, local_idx * local_stride, (end - begin) * logical_stride});
        local_idx += end - begin;
        continue;
      }
      for (int64_t i = begin; i < end; ++i, ++local_idx)
        for (const Run& r : runs)
          next.push_back(
              {i * logical_stride + r.logical_begin, local_idx * local_stride + r.local_begin, r.count});
    }
    logical_stride *= p.shape[dim];
    local_stride *= local_idx;
    runs = std::move(next);
  }
  return runs;
}

CutOf uneven_cut(const Parameter& p, const Mesh& mesh, int64_t unit) {
  for (const Shard& s : p.sharded) {
    const int64_t n = ranks_along(mesh, s.axis);
    if (n == 1) continue;
    int64_t inner = 1;
    for (size_t dim = static_cast<size_t>(s.dim) + 1; dim < p.shape.size(); ++dim) inner *= p.shape[dim];
    const auto uneven = [&](int64_t rows) { return rows * inner % unit != 0; };
    bool fault = s.dim > 0 && uneven(p.shape[static_cast<size_t>(s.dim)]);
    int64_t every = 0;
    for (const Block& b : pieces_of(p, s.dim)) {
      const int64_t part = base::ceil_div(b.size, n);
      every = every == 0 ? part * inner : std::min(every, part * inner);
      fault = fault || uneven(b.begin) || uneven(part);
    }
    if (fault) return {every, axis_key(s.axis), n};
  }
  return {};
}

int64_t row_elements(const Parameter& p, const Mesh& mesh) {
  int64_t first = 0;
  for (const Shard& s : p.sharded)
    if (ranks_along(mesh, s.axis) > 1) first = std::max(first, s.dim);
  int64_t elements = 1;
  for (size_t dim = static_cast<size_t>(first); dim < p.shape.size(); ++dim) elements *= p.shape[dim];
  return elements;
}

bool holds_layer(const config::Config& c, const Role& role, int layer) {
  return layer >= c.model.num_layers ? role.has_head() : role.has_layer(layer);
}

bool holds(const config::Config& c, const Role& role, const Parameter& p) {
  if (p.layer >= 0) return holds_layer(c, role, p.layer);
  if (p.name != "embedding.weight") return role.has_head();
  const bool at_head = c.model.tie_embeddings || c.model.num_mtp_layers > 0;
  return role.has_embedding() || (at_head && role.has_head());
}

Ownership ownership(const Parameter& p, const Mesh& mesh) {
  using program::Group;
  const auto partial = [&](Axis axis) {
    return std::find(p.gradient_partial.begin(), p.gradient_partial.end(), axis) != p.gradient_partial.end();
  };
  Ownership out;
  // With one tensor rank both dense groups are the same ranks; one name lets them share messages.
  out.reduction = partial(Axis::ExpertData)              ? Group::ExpertData
                  : partial(Axis::Tensor) && mesh.tp > 1 ? Group::TensorDataContext
                                                         : Group::DataContext;
  const bool expert = out.reduction == Group::ExpertData, dense = out.reduction == Group::DataContext;
  out.num_owners = mesh.owners(out.reduction);
  out.num_copies = mesh.size(out.reduction) / out.num_owners;
  out.inside = out.num_copies == 1 ? out.reduction
               : expert            ? Group::ExpertDataInside
               : dense             ? Group::DataContextInside
                                   : Group::TensorDataContextInside;
  out.across = expert  ? Group::ExpertDataAcross
               : dense ? Group::DataContextAcross
                       : Group::TensorDataContextAcross;
  out.elements = 1;
  for (const int64_t extent : local_shape(p, mesh)) out.elements *= extent;
  out.share = program::share_of(out.elements, out.num_owners, p.unit);
  return out;
}

std::vector<Run> share_runs(const std::vector<Run>& runs, const Ownership& own, int64_t owner) {
  const int64_t begin = std::min(own.share * owner, own.elements);
  const int64_t end = std::min(begin + own.share, own.elements);
  std::vector<Run> out;
  for (const Run& r : runs) {
    const int64_t from = std::max(r.local_begin, begin), to = std::min(r.local_begin + r.count, end);
    if (from < to) out.push_back({r.logical_begin + from - r.local_begin, from - begin, to - from});
  }
  return out;
}

}  // namespace pleat::model
