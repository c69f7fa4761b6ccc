#include "train/sharded_state.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/checked.h"
#include "model/decoder.h"

namespace pleat::train {

using checkpoint::Part;
using program::Group;

std::vector<LogicalTensor> logical_tensors(const config::Config& c,
                                           const std::vector<model::Parameter>& table) {
  const tensor::Dtype compute = c.model.dtype == "float64" ? tensor::Dtype::F64 : tensor::Dtype::F32;
  std::vector<LogicalTensor> out;
  for (size_t i = 0; i < table.size(); ++i) {
    const model::Parameter& p = table[i];
    if (!p.tied_to.empty()) continue;
    out.push_back({p.name, compute, p.shape, StateKind::Weight, static_cast<int>(i)});
    for (const char* moment : {".moment1", ".moment2"})
      out.push_back({p.name + moment, compute, p.shape, StateKind::Moment, static_cast<int>(i)});
  }
  for (int layer = 0; model::balances_by(c, "bias") && layer < config::num_all_layers(c); ++layer)
    if (config::is_moe_layer(c, layer))
      out.push_back({fmt::format("layers.{}.router.expert_bias", layer),
                     tensor::Dtype::F32,
                     {c.moe.num_experts},
                     StateKind::Bias,
                     -1,
                     layer});
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return out;
}

std::vector<Part> parts_on(const config::Config& c, const std::vector<model::Parameter>& table,
                           const LogicalTensor& t, const RankSetup& rank, Which which) {
  const int64_t size = tensor::size_of(t.dtype);
  if (t.kind == StateKind::Bias) {
    const bool first = rank.place.at(Group::TensorDataContext) == 0;
    if (!model::holds_layer(c, rank.role, t.layer) || (which == Which::Owned && !first)) return {};
    return {{0, 0, t.shape[0] * size}};
  }
  const model::Parameter& p = table[static_cast<size_t>(t.parameter_idx)];
  if (!model::holds(c, rank.role, p)) return {};
  if (which == Which::Owned && p.name == "embedding.weight" && !rank.role.has_embedding()) return {};
  const std::vector<model::Run> runs = model::local_runs(p, rank.mesh, rank.place.weights());
  int64_t elements = 1;  // padding included
  for (const int64_t extent : model::local_shape(p, rank.mesh)) elements *= extent;
  // Moments are only there as shares; weights are whole, but a rank answers for its share of them.
  const Group group = model::reduction_group(p);
  const int64_t share = base::ceil_div(elements, rank.mesh.size(group));
  const bool cut = t.kind == StateKind::Moment || which == Which::Owned;
  const int64_t begin = cut ? std::min(share * rank.place.at(group), elements) : 0;
  const int64_t end = cut ? std::min(begin + share, elements) : elements;
  const int64_t value_begin = t.kind == StateKind::Moment ? begin : 0;
  std::vector<Part> out;
  for (const model::Run& r : runs) {
    const int64_t from = std::max(r.local_begin, begin), to = std::min(r.local_begin + r.count, end);
    if (from >= to) continue;
    out.push_back(
        {(r.logical_begin + from - r.local_begin) * size, (from - value_begin) * size, (to - from) * size});
  }
  std::sort(out.begin(), out.end(),
            [](const Part& a, const Part& b) { return a.tensor_begin < b.tensor_begin; });
  return out;
}

namespace {

// Calls fn(offset in the range, part of it) for the parts inside [begin, begin + count) of the tensor.
template <class Fn>
void for_each_inside(const std::vector<Part>& parts, int64_t begin, int64_t count, Fn fn) {
  auto it = std::upper_bound(parts.begin(), parts.end(), begin,
                             [](int64_t at, const Part& p) { return at < p.tensor_begin + p.count; });
  for (; it != parts.end() && it->tensor_begin < begin + count; ++it) {
    const int64_t from = std::max(it->tensor_begin, begin);
    const int64_t to = std::min(it->tensor_begin + it->count, begin + count);
    fn(from - begin, Part{from, it->out_begin + from - it->tensor_begin, to - from});
  }
}

}  // namespace

ShardedState::ShardedState(Programs& programs, const Crew& crew)
    : programs_(programs), crew_(crew), tensors_(logical_tensors(programs.config(), programs.table())) {
  if (crew.leads() && !crew.alone())
    for (int r = 0; r < crew.setup().world(); ++r)
      ranks_.push_back(rank_setup(programs.config(), crew.setup().world(), r));
  else
    ranks_.push_back(crew.setup());
}

const std::vector<Part>& ShardedState::owned_by(size_t tensor_idx, int rank) {
  if (cached_idx_ != tensor_idx) {
    cached_idx_ = tensor_idx;
    cached_.clear();
    for (const RankSetup& r : ranks_)
      cached_.push_back(
          parts_on(programs_.config(), programs_.table(), tensors_[tensor_idx], r, Which::Owned));
  }
  return cached_[ranks_.size() == 1 ? 0 : static_cast<size_t>(rank)];
}

void ShardedState::gather(const std::function<void(std::vector<checkpoint::TensorRef>)>& use) {
  if (crew_.alone()) {
    use(programs_.tensors());
  } else if (crew_.leads()) {
    lead(use);
  } else {
    serve();
  }
}

namespace {
constexpr const char* kAsk = "state.ask";
constexpr const char* kPiece = "state.piece";
}  // namespace

void ShardedState::lead(const std::function<void(std::vector<checkpoint::TensorRef>)>& use) {
  std::vector<checkpoint::TensorRef> refs;
  for (size_t i = 0; i < tensors_.size(); ++i)
    refs.push_back({tensors_[i].name,
                    tensors_[i].dtype,
                    tensors_[i].shape,
                    {},
                    [this, i](int64_t begin, std::span<std::byte> out) { fetch(i, begin, out); }});
  std::array<int64_t, 3> end = {-1, 0, 0};
  try {
    use(std::move(refs));
  } catch (...) {
    crew_.tell(kAsk, end);
    throw;
  }
  crew_.tell(kAsk, end);
}

void ShardedState::fetch(size_t tensor_idx, int64_t begin, std::span<std::byte> out) {
  const int64_t count = static_cast<int64_t>(out.size());
  std::array<int64_t, 3> ask = {static_cast<int64_t>(tensor_idx), begin, count};
  crew_.tell(kAsk, ask);
  int64_t filled = 0;
  for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
    const std::vector<Part>& parts = owned_by(tensor_idx, r);
    int64_t bytes = 0;
    for_each_inside(parts, begin, count, [&](int64_t, const Part& p) { bytes += p.count; });
    if (bytes == 0) continue;
    const std::byte* from = nullptr;
    if (r > 0) {
      buffer_.resize(static_cast<size_t>(bytes));
      crew_.receive_from(kPiece, r, buffer_);
      from = buffer_.data();
    } else {
      from = programs_.target(tensors_[tensor_idx].name).bytes.data();
    }
    for_each_inside(parts, begin, count, [&](int64_t at, const Part& p) {
      std::memcpy(out.data() + at, r > 0 ? from : from + p.out_begin, static_cast<size_t>(p.count));
      if (r > 0) from += p.count;
    });
    filled += bytes;
  }
  PLEAT_CHECK(filled == count, "{}: {} of {} bytes have an owner", tensors_[tensor_idx].name, filled, count);
}

void ShardedState::serve() {
  while (true) {
    std::array<int64_t, 3> ask{};
    crew_.tell(kAsk, ask);
    if (ask[0] < 0) return;
    const size_t tensor_idx = static_cast<size_t>(ask[0]);
    const std::vector<Part>& parts = owned_by(tensor_idx, crew_.setup().rank());
    buffer_.clear();
    for_each_inside(parts, ask[1], ask[2], [&](int64_t, const Part& p) {
      const std::byte* from = programs_.target(tensors_[tensor_idx].name).bytes.data() + p.out_begin;
      buffer_.insert(buffer_.end(), from, from + p.count);
    });
    if (!buffer_.empty()) crew_.send_to_leader(kPiece, buffer_);
  }
}

void ShardedState::restore(const checkpoint::Loaded& loaded) {
  if (crew_.alone()) return checkpoint::restore(loaded, programs_.targets());
  std::vector<checkpoint::Expected> expected;
  for (const LogicalTensor& t : tensors_) expected.push_back({t.name, t.dtype, t.shape});
  checkpoint::require_fits(loaded, expected);
  for (const LogicalTensor& t : tensors_) {
    const std::vector<Part> parts =
        parts_on(programs_.config(), programs_.table(), t, crew_.setup(), Which::Held);
    if (!parts.empty()) loaded.read_parts(t.name, parts, programs_.target(t.name).bytes);
  }
}

}  // namespace pleat::train
