#include "layout/layout.h"

#include <algorithm>

#include "base/error.h"
#include "layout/fit.h"

namespace pleat::layout {

std::string_view name_of(GroupKind kind) {
  static constexpr std::string_view kNames[] = {"tp",       "cp",     "dp",        "dp-cp", "tp-cp",
                                                "tp-cp-dp", "tp-pp",  "embedding", "pp",    "ep",
                                                "etp",      "etp-ep", "etp-ep-pp", "edp",   "world"};
  static_assert(std::size(kNames) == kNumGroupKinds);
  return kNames[static_cast<size_t>(kind)];
}

Layout::Layout(const Sizes& s) : sizes_(s) {
  require_fit(s);
  const std::array<int, 5> order = parse_order(s.order);
  for (size_t i = 0; i < order.size(); ++i) order_[i] = static_cast<Axis>(order[i]);
  attention_ = make_mesh({s.tp, s.cp, 1, s.world / (s.tp * s.cp * s.pp), s.pp});
  expert_ = make_mesh({s.etp, 1, s.ep, s.world / (s.etp * s.ep * s.pp), s.pp});
  // An axis of size 1 has no neighbours: its stride says nothing.
  PLEAT_CHECK(s.pp == 1 || attention_.stride[kPipeline] == expert_.stride[kPipeline],
              "the pipelines of both meshes are the same ranks");
}

Layout::Mesh Layout::make_mesh(PerAxis sizes) const {
  Mesh mesh;
  mesh.size = sizes;
  int64_t stride = 1;
  for (const Axis axis : order_) {
    mesh.stride[axis] = stride;
    stride *= sizes[axis];
  }
  PLEAT_CHECK(stride == sizes_.world, "a mesh covers the world");
  return mesh;
}

void Layout::require_rank(int64_t rank) const {
  if (rank < 0 || rank >= sizes_.world) base::fail("rank {} of {} ranks", rank, sizes_.world);
}

AttentionPlace Layout::attention(int64_t rank) const {
  require_rank(rank);
  const Mesh& m = attention_;
  return {m.coordinate(kTensor, rank), m.coordinate(kContext, rank), m.coordinate(kData, rank),
          m.coordinate(kPipeline, rank)};
}

ExpertPlace Layout::expert(int64_t rank) const {
  require_rank(rank);
  const Mesh& m = expert_;
  return {m.coordinate(kTensor, rank), m.coordinate(kExpert, rank), m.coordinate(kData, rank),
          m.coordinate(kPipeline, rank)};
}

int64_t Layout::rank_of(const AttentionPlace& p) const {
  const PerAxis& s = attention_.stride;
  const int64_t rank = p.tp * s[kTensor] + p.cp * s[kContext] + p.dp * s[kData] + p.pp * s[kPipeline];
  if (std::min({p.tp, p.cp, p.dp, p.pp}) < 0 || rank >= sizes_.world || attention(rank) != p)
    base::fail("there is no rank at tp {} cp {} dp {} pp {}", p.tp, p.cp, p.dp, p.pp);
  return rank;
}

int64_t Layout::rank_of(const ExpertPlace& p) const {
  const PerAxis& s = expert_.stride;
  const int64_t rank = p.etp * s[kTensor] + p.ep * s[kExpert] + p.edp * s[kData] + p.pp * s[kPipeline];
  if (std::min({p.etp, p.ep, p.edp, p.pp}) < 0 || rank >= sizes_.world || expert(rank) != p)
    base::fail("there is no rank at etp {} ep {} edp {} pp {}", p.etp, p.ep, p.edp, p.pp);
  return rank;
}

Layout::Span Layout::span_of(GroupKind kind) const {
  const auto span = [](const Mesh& mesh, std::initializer_list<Axis> axes) {
    Span out{mesh, {}};
    for (const Axis axis : axes) out.in[axis] = true;
    return out;
  };
  switch (kind) {
    case GroupKind::Tensor:
      return span(attention_, {kTensor});
    case GroupKind::Context:
      return span(attention_, {kContext});
    case GroupKind::Data:
      return span(attention_, {kData});
    case GroupKind::DataContext:
      return span(attention_, {kData, kContext});
    case GroupKind::TensorContext:
      return span(attention_, {kTensor, kContext});
    case GroupKind::TensorContextData:
      return span(attention_, {kTensor, kContext, kData});
    case GroupKind::TensorPipeline:
      return span(attention_, {kTensor, kPipeline});
    case GroupKind::Embedding:
    case GroupKind::Pipeline:
      return span(attention_, {kPipeline});
    case GroupKind::Expert:
      return span(expert_, {kExpert});
    case GroupKind::ExpertTensor:
      return span(expert_, {kTensor});
    case GroupKind::Dispatch:
      return span(expert_, {kTensor, kExpert});
    case GroupKind::ExpertModel:
      return span(expert_, {kTensor, kExpert, kPipeline});
    case GroupKind::ExpertData:
      return span(expert_, {kData});
    case GroupKind::World:
      return span(attention_, {kTensor, kContext, kExpert, kData, kPipeline});
  }
  base::fail_with(base::ExitCode::Internal, "group kind {} is not known", static_cast<int>(kind));
}

std::vector<int> Layout::walk(const Span& span, bool which, int64_t base) const {
  std::vector<int> out = {static_cast<int>(base)};
  for (const Axis axis : order_) {
    if (span.in[axis] != which) continue;
    const size_t num_so_far = out.size();
    for (int64_t i = 1; i < span.mesh.size[axis]; ++i)
      for (size_t j = 0; j < num_so_far; ++j)
        out.push_back(out[j] + static_cast<int>(i * span.mesh.stride[axis]));
  }
  return out;
}

namespace {

// Of one pipeline: its ends.
std::vector<int> ends(const std::vector<int>& pipeline) {
  if (pipeline.size() == 1) return pipeline;
  return {pipeline.front(), pipeline.back()};
}

}  // namespace

std::vector<int> Layout::group(GroupKind kind, int64_t rank) const {
  require_rank(rank);
  const Span span = span_of(kind);
  int64_t base = rank;
  for (const Axis axis : order_)
    if (span.in[axis]) base -= span.mesh.coordinate(axis, rank) * span.mesh.stride[axis];
  std::vector<int> out = walk(span, true, base);
  if (kind != GroupKind::Embedding) return out;
  out = ends(out);
  if (std::find(out.begin(), out.end(), static_cast<int>(rank)) == out.end()) out.clear();
  return out;
}

std::vector<std::vector<int>> Layout::groups(GroupKind kind) const {
  const Span span = span_of(kind);
  std::vector<std::vector<int>> out;
  for (const int base : walk(span, false, 0)) {
    out.push_back(walk(span, true, base));
    if (kind == GroupKind::Embedding) out.back() = ends(out.back());
  }
  return out;
}

int64_t Layout::group_size(GroupKind kind) const {
  const Span span = span_of(kind);
  int64_t size = 1;
  for (const Axis axis : order_)
    if (span.in[axis]) size *= span.mesh.size[axis];
  return kind == GroupKind::Embedding ? std::min<int64_t>(size, 2) : size;
}

int64_t Layout::num_owners(GroupKind kind) const {
  const int64_t size = group_size(kind);
  return sizes_.optimizer_group == 0 ? size : std::min(size, sizes_.optimizer_group);
}

int64_t Layout::index_in_group(GroupKind kind, int64_t rank) const {
  require_rank(rank);
  const Span span = span_of(kind);
  int64_t index = 0, stride = 1;
  for (const Axis axis : order_) {
    if (!span.in[axis]) continue;
    index += span.mesh.coordinate(axis, rank) * stride;
    stride *= span.mesh.size[axis];
  }
  if (kind != GroupKind::Embedding || index == 0) return index;
  return index == stride - 1 ? 1 : -1;
}

int64_t Layout::shifted(int64_t rank, int64_t stages) const {
  require_rank(rank);
  const int64_t at = attention_.coordinate(kPipeline, rank), pp = sizes_.pp;
  return rank + ((at + stages + pp) % pp - at) * attention_.stride[kPipeline];
}
int64_t Layout::next_stage(int64_t rank) const { return shifted(rank, 1); }
int64_t Layout::previous_stage(int64_t rank) const { return shifted(rank, -1); }

namespace {

int64_t part_size(const std::vector<int>& group, int64_t index, int64_t num_parts) {
  const int64_t n = static_cast<int64_t>(group.size());
  if (num_parts < 1 || n % num_parts != 0)
    base::fail("a group of {} ranks cannot be cut into {} equal parts", n, num_parts);
  if (index < 0 || index >= n) base::fail("position {} of a group of {} ranks", index, n);
  return n / num_parts;
}

}  // namespace

std::vector<int> inside_part(const std::vector<int>& group, int64_t index, int64_t num_parts) {
  const int64_t size = part_size(group, index, num_parts);
  const auto begin = group.begin() + index / size * size;
  return {begin, begin + size};
}

std::vector<int> across_parts(const std::vector<int>& group, int64_t index, int64_t num_parts) {
  const int64_t size = part_size(group, index, num_parts);
  std::vector<int> out;
  for (int64_t i = index % size; i < static_cast<int64_t>(group.size()); i += size)
    out.push_back(group[static_cast<size_t>(i)]);
  return out;
}

}  // namespace pleat::layout
