#include "model/mesh.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace pleat::model {

std::string_view name_of(RowExchange exchange) {
  return exchange == RowExchange::Counted  ? "counted"
         : exchange == RowExchange::Padded ? "padded"
                                           : "windows";
}

std::string_view name_of(ContextKind kind) {
  switch (kind) {
    case ContextKind::AllGather:
      return "allgather";
    case ContextKind::AllToAll:
      return "alltoall";
    case ContextKind::Ring:
      return "ring";
  }
  return "?";
}

ContextKind context_kind(const std::string& name) {
  for (const ContextKind kind : {ContextKind::AllGather, ContextKind::AllToAll, ContextKind::Ring})
    if (name == name_of(kind)) return kind;
  base::fail("parallel.context = \"{}\": needed \"allgather\", \"alltoall\" or \"ring\"", name);
}

int64_t Mesh::size(program::Group group) const {
  using program::Group;
  switch (group) {
    case Group::None:
      return 1;
    case Group::Tensor:
      return tp;
    case Group::Context:
      return cp;
    case Group::Data:
      return dp;
    case Group::Pipeline:
      return pp;
    case Group::Expert:
      return ep;
    case Group::ExpertTensor:
      return etp;
    case Group::ExpertData:
      return edp;
    case Group::World:
      return world();
    case Group::TensorContext:
      return tp * cp;
    case Group::DataContext:
      return dp * cp;
    case Group::TensorDataContext:
      return tp * dp * cp;
    case Group::Dispatch:
      return ep * etp;
    case Group::Ends:
      return pp > 1 ? 2 : 1;
    case Group::DataContextInside:
      return owners(Group::DataContext);
    case Group::DataContextAcross:
      return size(Group::DataContext) / owners(Group::DataContext);
    case Group::TensorDataContextInside:
      return owners(Group::TensorDataContext);
    case Group::TensorDataContextAcross:
      return size(Group::TensorDataContext) / owners(Group::TensorDataContext);
    case Group::ExpertDataInside:
      return owners(Group::ExpertData);
    case Group::ExpertDataAcross:
      return size(Group::ExpertData) / owners(Group::ExpertData);
  }
  return 1;
}

int64_t Mesh::owners(program::Group reduction) const {
  const int64_t n = size(reduction);
  return optimizer_group == 0 ? n : std::min(n, optimizer_group);
}

bool Role::has_embedding() const {
  return std::any_of(chunks.begin(), chunks.end(), [](const Chunk& c) { return c.embedding; });
}

bool Role::has_head() const {
  return std::any_of(chunks.begin(), chunks.end(), [](const Chunk& c) { return c.head; });
}

bool Role::has_layer(int layer) const {
  return std::any_of(chunks.begin(), chunks.end(), [layer](const Chunk& c) {
    return std::find(c.layers.begin(), c.layers.end(), layer) != c.layers.end();
  });
}

Role whole_model(int64_t num_layers) {
  Role role;
  role.chunks.resize(1);
  role.chunks[0].layers.resize(static_cast<size_t>(num_layers));
  std::iota(role.chunks[0].layers.begin(), role.chunks[0].layers.end(), 0);
  return role;
}

}  // namespace pleat::model
