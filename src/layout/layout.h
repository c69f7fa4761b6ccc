// Which rank does what: two meshes over the same ranks (Parallel Folding).
//
//   attention, dense layers, embedding, head:  ranks = tp x cp x dp x pp
//   routed experts:                            ranks = etp x ep x edp x pp
//
// dp and edp are what is left. Only the pipeline is shared: a rank holds the attention and the experts of the
// same layers, and everything else folds freely, so that ep may span what attention uses as tp, cp and dp.
//
// The order names the axes from the fastest to the slowest. Sizes in that order give strides, and
// rank = sum of coordinate x stride. cp has size 1 for experts and ep has size 1 for attention; etp takes the
// place of tp and edp that of dp. A group over a set of axes fixes all others; its ranks count up along the
// set, the axis that comes first in the order fastest. That sequence is the order of every reduction over the
// group, so it must never depend on anything but the sizes.
//
// Nothing here is proportional to the number of ranks except lists that are asked for.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pleat::layout {

struct Sizes {
  int64_t world = 1;
  int64_t tp = 1, cp = 1, pp = 1, vpp = 1, ep = 1, etp = 1;
  std::string order = "tp-cp-ep-dp-pp";
  int64_t num_experts = 0;      // ep must divide it; 0: not looked at
  int64_t optimizer_group = 0;  // replicas that share one optimizer state; 0: all of them

  bool operator==(const Sizes&) const = default;
};

enum class GroupKind : uint8_t {
  // of the attention mesh
  Tensor,
  Context,
  Data,
  DataContext,        // replicas of a dense weight: gradients are summed and optimizer state is cut over it
  TensorContext,      // one sequence
  TensorContextData,  // one pipeline stage: router statistics
  TensorPipeline,     // one copy of the dense weights: their norm
  Embedding,          // first and last stage of a pipeline: tied embeddings. Ranks in between have none.
  // shared
  Pipeline,
  // of the expert mesh
  Expert,
  ExpertTensor,
  Dispatch,     // etp x ep: who exchanges tokens
  ExpertModel,  // etp x ep x pp: one copy of the experts, their norm
  ExpertData,   // replicas of an expert weight
  World,
};
inline constexpr int kNumGroupKinds = static_cast<int>(GroupKind::World) + 1;
std::string_view name_of(GroupKind kind);  // "tp", "dp-cp", "etp-ep", ...

struct AttentionPlace {
  int64_t tp = 0, cp = 0, dp = 0, pp = 0;
  bool operator==(const AttentionPlace&) const = default;
};
struct ExpertPlace {
  int64_t etp = 0, ep = 0, edp = 0, pp = 0;
  bool operator==(const ExpertPlace&) const = default;
};

class Layout {
 public:
  // Throws when the sizes do not divide the world, when ep does not divide the experts, or when the pipelines
  // of the two meshes would be different ranks. The message has the equation and the three nearest settings
  // that fit.
  explicit Layout(const Sizes& sizes);

  const Sizes& sizes() const { return sizes_; }
  int64_t world() const { return sizes_.world; }
  int64_t dp() const { return attention_.size[kData]; }
  int64_t edp() const { return expert_.size[kData]; }

  AttentionPlace attention(int64_t rank) const;
  ExpertPlace expert(int64_t rank) const;
  int64_t rank_of(const AttentionPlace& place) const;
  int64_t rank_of(const ExpertPlace& place) const;

  int64_t group_size(GroupKind kind) const;  // Embedding: of the ranks that are in one
  // Ranks of such a group that own one copy of a state between them: optimizer_group, or all where that is 0
  // or more than there are.
  int64_t num_owners(GroupKind kind) const;
  // The group that holds `rank`, in the order of reductions; empty where there is none (Embedding).
  std::vector<int> group(GroupKind kind, int64_t rank) const;
  // Position of `rank` in its group; -1 where there is none.
  int64_t index_in_group(GroupKind kind, int64_t rank) const;
  // Every group of the kind; each rank is in exactly one (Embedding: in at most one).
  std::vector<std::vector<int>> groups(GroupKind kind) const;

  // Neighbours on the pipeline. The last stage's next is the first one (the next chunk, with vpp > 1).
  int64_t next_stage(int64_t rank) const;
  int64_t previous_stage(int64_t rank) const;

 private:
  enum Axis : uint8_t { kTensor, kContext, kExpert, kData, kPipeline, kNumAxes };
  using PerAxis = std::array<int64_t, kNumAxes>;
  struct Mesh {
    PerAxis size{}, stride{};
    int64_t coordinate(Axis axis, int64_t rank) const { return rank / stride[axis] % size[axis]; }
  };
  struct Span {
    const Mesh& mesh;
    std::array<bool, kNumAxes> in{};
  };
  Mesh make_mesh(PerAxis sizes) const;
  Span span_of(GroupKind kind) const;
  // Ranks from `base` along the axes for which `in` is `which`.
  std::vector<int> walk(const Span& span, bool which, int64_t base) const;
  void require_rank(int64_t rank) const;
  int64_t shifted(int64_t rank, int64_t stages) const;

  Sizes sizes_;
  std::array<Axis, kNumAxes> order_{};
  Mesh attention_, expert_;
};

// A group cut into `num_parts` equal runs: replicas inside a part shard a state, parts repeat it. Inside: the
// run that holds position `index`; across: the same position of every run. Throws unless num_parts divides
// the group.
std::vector<int> inside_part(const std::vector<int>& group, int64_t index, int64_t num_parts);
std::vector<int> across_parts(const std::vector<int>& group, int64_t index, int64_t num_parts);

}  // namespace pleat::layout
