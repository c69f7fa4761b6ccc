#include "train/sharded_state.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"
#include "model/decoder.h"
#include "model/shard.h"
#include "model/state.h"
#include "train/restore_state.h"

namespace pleat::train {

using checkpoint::Part;
using program::Group;

std::vector<LogicalTensor> logical_tensors(const config::Config& c,
                                           const std::vector<model::Parameter>& table) {
  const tensor::Dtype weights = model::weight_format(c);
  std::vector<LogicalTensor> out;
  for (size_t i = 0; i < table.size(); ++i) {
    const model::Parameter& p = table[i];
    if (!p.tied_to.empty()) continue;
    out.push_back({p.name, weights, p.shape, StateKind::Weight, static_cast<int>(i)});
    for (const model::StateSlot& s : model::optimizer_of(c, p).states)
      out.push_back({p.name + s.name, s.format, model::state_shape(s, p.shape), StateKind::Share,
                     static_cast<int>(i), -1, s.span});
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
                           const LogicalTensor& t, const runtime::RankSetup& rank, Which which) {
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
  // What only the optimizer knows is there as shares; weights are whole, but a rank answers for its share of
  // them, and only the first of the ranks that repeat it does.
  const model::Ownership own = model::ownership(p, rank.mesh);
  const bool cut = t.kind == StateKind::Share || which == Which::Owned;
  const int64_t place = rank.place.at(which == Which::Owned ? own.reduction : own.inside);
  const int64_t begin = cut ? std::min(own.share * place, own.elements) : 0;
  const int64_t end = cut ? std::min(begin + own.share, own.elements) : own.elements;
  const int64_t value_begin = t.kind == StateKind::Share ? begin : 0;
  std::vector<Part> out;
  for (const model::Run& r : runs) {
    const int64_t from = std::max(r.local_begin, begin), to = std::min(r.local_begin + r.count, end);
    if (from >= to) continue;
    // Of a state with one number for many elements: cuts are at its units.
    out.push_back({(r.logical_begin + from - r.local_begin) / t.span * size,
                   (from - value_begin) / t.span * size, base::ceil_div(to - from, t.span) * size});
  }
  std::sort(out.begin(), out.end(),
            [](const Part& a, const Part& b) { return a.tensor_begin < b.tensor_begin; });
  return out;
}

ShardedState::ShardedState(runtime::Programs& programs, const runtime::Crew& crew)
    : programs_(programs), crew_(crew), tensors_(logical_tensors(programs.config(), programs.table())) {
  if (crew.leads() && !crew.alone())
    for (int r = 0; r < crew.setup().world(); ++r)
      ranks_.push_back(runtime::rank_setup(programs.config(), crew.setup().world(), r));
  else
    ranks_.push_back(crew.setup());
  int64_t offset = 0;
  for (const LogicalTensor& t : tensors_) {
    offsets_.push_back(offset);
    offset += checkpoint::num_bytes_of(t.dtype, t.shape, t.name);
  }
  offsets_.push_back(offset);
}

std::vector<ShardedState::Copy> ShardedState::copies(const runtime::RankSetup& rank, int64_t begin,
                                                     int64_t count) const {
  std::vector<Copy> out;
  size_t i =
      static_cast<size_t>(std::upper_bound(offsets_.begin(), offsets_.end(), begin) - offsets_.begin()) - 1;
  for (; i < tensors_.size() && offsets_[i] < begin + count; ++i)
    for (const Part& p : parts_on(programs_.config(), programs_.table(), tensors_[i], rank, Which::Owned)) {
      const int64_t at = offsets_[i] + p.tensor_begin;
      const int64_t from = std::max(at, begin), to = std::min(at + p.count, begin + count);
      if (from < to) out.push_back({from - begin, to - from, i, p.out_begin + from - at});
    }
  return out;
}

std::vector<checkpoint::ShareTensor> ShardedState::share() {
  std::vector<checkpoint::ShareTensor> out;
  for (const LogicalTensor& t : tensors_) {
    const auto parts = [this, &t] {
      return parts_on(programs_.config(), programs_.table(), t, crew_.setup(), Which::Owned);
    };
    const int64_t size = tensor::size_of(t.dtype);
    int64_t row = t.kind == StateKind::Bias
                      ? t.shape[0]
                      : model::row_elements(programs_.table()[static_cast<size_t>(t.parameter_idx)],
                                            crew_.setup().mesh);
    if (t.span > 1) row = row % t.span == 0 ? row / t.span : t.shape[0];
    checkpoint::ConstBytes bytes;
    if (!parts().empty()) bytes = programs_.target(t.name).bytes;
    out.push_back({t.name, t.dtype, t.shape, row * size, bytes, parts});
  }
  return out;
}

void ShardedState::gather(const std::function<void(std::vector<checkpoint::TensorRef>)>& use) {
  if (crew_.alone()) return use(programs_.tensors());
  if (crew_.leads()) {
    lead(use);
  } else {
    serve();
  }
}

namespace {
constexpr const char* kAsk = "state.ask";
constexpr const char* kPiece = "state.piece";
}  // namespace

// The stream, for whom only reads.
class ShardedState::Gathered final : public checkpoint::Memory {
 public:
  explicit Gathered(ShardedState& state) : state_(state) {}
  std::unique_ptr<Cursor> cursor(int64_t, int64_t) override { return std::make_unique<Place>(state_); }
  void write(int64_t, int64_t, const Fill&) override { refuse(); }
  void zero(int64_t, int64_t) override { refuse(); }

 private:
  struct Place final : Cursor {
    explicit Place(ShardedState& state) : state(state) {}
    std::span<const std::byte> at(int64_t begin, int64_t end) override {
      const std::span<const std::byte> there = state.at(begin);
      return there.first(std::min(there.size(), static_cast<size_t>(end - begin)));
    }
    ShardedState& state;
  };
  [[noreturn]] static void refuse() {
    base::fail_with(base::ExitCode::Internal, "the state of other ranks is read, never written");
  }

  ShardedState& state_;
};

void ShardedState::lead(const std::function<void(std::vector<checkpoint::TensorRef>)>& use) {
  Gathered stream(*this);
  std::vector<checkpoint::TensorRef> refs;
  for (size_t i = 0; i < tensors_.size(); ++i)
    refs.push_back({tensors_[i].name,
                    tensors_[i].dtype,
                    tensors_[i].shape,
                    {stream, offsets_[i], offsets_[i + 1] - offsets_[i]}});
  window_.clear();  // the state has moved on since
  std::array<int64_t, 2> end = {-1, 0};
  try {
    use(std::move(refs));
  } catch (...) {
    crew_.tell(kAsk, end);
    throw;
  }
  crew_.tell(kAsk, end);
}

std::span<const std::byte> ShardedState::at(int64_t begin) {
  constexpr int64_t kWindow = int64_t{4} << 20;
  if (begin < window_begin_ || begin >= window_begin_ + static_cast<int64_t>(window_.size()))
    fetch(begin, std::min(kWindow, offsets_.back() - begin));
  return std::span(window_).subspan(static_cast<size_t>(begin - window_begin_));
}

void ShardedState::read_own(const Copy& c, std::span<std::byte> out) const {
  programs_.target(tensors_[c.tensor_idx].name).bytes.read(c.value_begin, out);
}

void ShardedState::fetch(int64_t begin, int64_t count) {
  std::array<int64_t, 2> ask = {begin, count};
  crew_.tell(kAsk, ask);
  window_begin_ = begin;
  window_.resize(static_cast<size_t>(count));
  int64_t filled = 0;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const std::vector<Copy> list = copies(ranks_[r], begin, count);
    int64_t bytes = 0;
    for (const Copy& c : list) bytes += c.count;
    filled += bytes;
    if (bytes == 0) continue;
    if (r > 0) {
      buffer_.resize(static_cast<size_t>(bytes));
      crew_.receive_from(kPiece, static_cast<int>(r), buffer_);
    }
    const std::byte* from = buffer_.data();
    for (const Copy& c : list) {
      const auto to =
          std::span(window_).subspan(static_cast<size_t>(c.window_begin), static_cast<size_t>(c.count));
      if (r == 0)
        read_own(c, to);
      else
        std::memcpy(to.data(), from, to.size());
      from += r == 0 ? 0 : c.count;
    }
  }
  PLEAT_CHECK(filled == count, "{} of {} bytes of the state have an owner", filled, count);
}

void ShardedState::serve() {
  while (true) {
    std::array<int64_t, 2> ask{};
    crew_.tell(kAsk, ask);
    if (ask[0] < 0) return;
    buffer_.clear();
    for (const Copy& c : copies(crew_.setup(), ask[0], ask[1])) {
      const size_t begin = buffer_.size();
      buffer_.resize(begin + static_cast<size_t>(c.count));
      read_own(c, std::span(buffer_).subspan(begin));
    }
    if (!buffer_.empty()) crew_.send_to_leader(kPiece, buffer_);
  }
}

void ShardedState::restore(const checkpoint::Loaded& loaded) {
  if (crew_.alone()) return restore_state(loaded, programs_.targets());
  std::vector<checkpoint::Expected> expected;
  for (const LogicalTensor& t : tensors_) expected.push_back({t.name, t.dtype, t.shape});
  PartRestorer restorer(loaded, expected);
  for (const LogicalTensor& t : tensors_) {
    const std::vector<Part> parts =
        parts_on(programs_.config(), programs_.table(), t, crew_.setup(), Which::Held);
    if (!parts.empty()) restorer.read(t.name, t.dtype, parts, programs_.target(t.name).bytes);
  }
}

}  // namespace pleat::train
