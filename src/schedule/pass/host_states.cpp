#include "schedule/pass/host_states.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "model/state.h"
#include "program/builder.h"
#include "program/edit.h"
#include "tensor/block_codes.h"

namespace pleat::schedule {
namespace {

using namespace program;

// Pieces begin at a multiple of the block of codes and of what a GPU's access takes.
constexpr int64_t kPieceUnit = 1024;

// More would take minutes to plan, and each is a copy too small for the link.
constexpr size_t kMostBuckets = 16'384;

constexpr int64_t kAlign = 256;  // of a state in its bucket, as plans align values

bool is_state(const Value& v) {
  return v.owner == Owner::Optimizer && v.life == Life::Persistent && v.view_of == kNoValue;
}

// Elements [first, first + count) of what an update changes; all of it, or a piece.
struct Piece {
  StageId update = 0;
  int64_t first = 0, count = 0;
  int index = -1;  // -1: all of it
};
using Bucket = std::vector<Piece>;

class States {
 public:
  States(Program program, int64_t bucket_bytes) : edit_(std::move(program)), bucket_bytes_(bucket_bytes) {}

  Program apply() {
    const std::vector<Bucket> buckets = make_buckets();
    for (ValueId v = 0; v < num_values_; ++v)
      if (is_state(edit_.value(v))) edit_.value(v).space = Space::Pinned;
    if (buckets.empty()) return edit_.apply();
    in_ = edit_.lane("h2d", "host_link"), out_ = edit_.lane("d2h", "host_link");
    const StageId begin = first_of_update();
    std::vector<StageId> done;  // the last copy out of each bucket
    std::vector<std::vector<Stage>> updates;
    const auto come = [&](size_t k) {
      updates.emplace_back(), copies_.emplace_back();
      begin_bucket(buckets[k], k);
      bool first = true;
      for (const Piece& piece : buckets[k]) {
        Stage update = update_of(piece);
        for (const Use& host : host_states_of(piece)) {
          const StageId copy = edit_.insert_before(
              anchor_, copy_stage(Op::copy_in, in_, host.value, device_of(update, host.value, piece)));
          if (std::exchange(first, false)) edit_.wait(copy, k < 2 ? begin : done[k - 2]);
        }
        updates.back().push_back(std::move(update));
      }
    };
    for (size_t k = 0; k < buckets.size(); ++k) {
      anchor_ = buckets[k].back().update;  // where the gradients of all are there
      if (k == 0) come(0);
      if (k + 1 < buckets.size()) come(k + 1);
      for (Stage& update : updates[k]) edit_.insert_before(anchor_, update);
      StageId last = begin;
      for (const auto& [host, device] : copies_[k])
        last = edit_.insert_before(anchor_, copy_stage(Op::copy_out, out_, device, host));
      done.push_back(last);
    }
    for (const Bucket& bucket : buckets)
      for (const Piece& piece : bucket)
        if (piece.index <= 0) edit_.erase(piece.update);
    return edit_.apply();
  }

 private:
  const Value& value(ValueId v) { return edit_.value(v); }
  bool is_host(const Use& use) {
    return use.value != kNoValue && use.access == Access::Update && is_state(value(use.value));
  }

  std::vector<Bucket> make_buckets() {
    std::vector<Bucket> out;
    int64_t filled = 0;
    const auto add = [&](const Piece& piece, int64_t bytes) {
      if (out.empty() || filled + bytes > bucket_bytes_) out.emplace_back(), filled = 0;
      out.back().push_back(piece);
      filled += bytes;
    };
    for (StageId s = 0; s < edit_.num_stages(); ++s) {
      if (!model::is_update(edit_[s].op)) continue;
      const int64_t elements = elements_of(s), all = bytes_of(s, elements);
      if (all <= bucket_bytes_ || is_cut(s)) {
        add({s, 0, elements, -1}, all);
        continue;
      }
      const int64_t units = std::max<int64_t>(1, bucket_bytes_ / bytes_of(s, kPieceUnit));
      int index = 0;
      for (int64_t first = 0; first < elements; first += units * kPieceUnit) {
        const int64_t count = std::min(units * kPieceUnit, elements - first);
        add({s, first, count, index++}, bytes_of(s, count));
      }
    }
    if (out.size() > kMostBuckets)
      base::fail(
          "optimizer.state_bucket_mb = {} cuts the states of a rank into {} buckets, needed are at most {}: "
          "choose {} or more",
          bucket_bytes_ >> 20, out.size(), kMostBuckets,
          (bucket_bytes_ >> 20) * static_cast<int64_t>(out.size() / kMostBuckets + 1));
    return out;
  }

  StageId first_of_update() const {
    for (StageId s = 0; s < edit_.num_stages(); ++s)
      if (edit_[s].phase == Phase::Update && edit_[s].op == Op::grad_norm) return s;
    PLEAT_CHECK(false, "an update has no norm of gradients before it");
  }

  // The gradient has an element for every one that changes; the states that hold numbers too.
  int64_t elements_of(StageId s) { return num_elements(value(edit_[s].uses[0].value)); }
  // Elements that a number of a state belongs to.
  int64_t span_of(StageId s, ValueId state) {
    return num_elements(value(state)) == elements_of(s) ? 1 : tensor::kCodeBlock;
  }
  int64_t bytes_of(StageId s, int64_t elements) {
    int64_t bytes = 0;
    for (const Use& use : edit_[s].uses)
      if (is_host(use))
        bytes += base::round_up(
            base::ceil_div(elements, span_of(s, use.value)) * tensor::size_of(value(use.value).dtype),
            kAlign);
    return bytes;
  }
  // Where the rank has a share only, its place in the weight is known when the kernel runs.
  bool is_cut(StageId s) {
    return std::any_of(edit_[s].uses.begin(), edit_[s].uses.end(), [&](const Use& use) {
      return use.value != kNoValue && value(use.value).name == "coords";
    });
  }

  // `count` elements of a value from `first` on, in a row.
  ValueId part_of(ValueId whole, int64_t first, int64_t count, const Piece& piece) {
    const auto [found, fresh] = parts_.try_emplace({whole, piece.index}, kNoValue);
    if (!fresh) return found->second;
    const ValueId part = edit_.copy_of(whole, fmt::format("[{}]", piece.index));
    Value& v = edit_.value(part);
    v.shape = {count};
    v.offset = v.offset + first * tensor::size_of(v.dtype);
    if (v.view_of == kNoValue) v.view_of = whole, v.offset = first * tensor::size_of(v.dtype);
    found->second = part;
    return part;
  }
  ValueId part_of_state(ValueId whole, const Piece& piece) {
    const int64_t span = span_of(piece.update, whole);
    return part_of(whole, piece.first / span, base::ceil_div(piece.count, span), piece);
  }

  // The update of a piece, still on the host's states.
  Stage update_of(const Piece& piece) {
    Stage out = edit_[piece.update];
    out.after.clear();
    out.part = num_updates_++;
    if (piece.index < 0) return out;
    const auto elements = elements_of(piece.update);
    for (Use& use : out.uses) {
      if (use.value == kNoValue) continue;
      if (is_host(use))
        use.value = part_of_state(use.value, piece);
      else if (num_elements(value(use.value)) == elements && value(use.value).life != Life::Input)
        use.value = part_of(use.value, piece.first, piece.count, piece);
    }
    AttrSet attrs = edit_.program().attrs[static_cast<size_t>(out.attrs)];
    for (Attr& a : attrs)
      if (a.key == "element") a.number += static_cast<double>(piece.first);
    out.attrs = edit_.attrs(std::move(attrs));
    return out;
  }

  std::vector<Use> host_states_of(const Piece& piece) {
    std::vector<Use> out;
    for (const Use& use : edit_[piece.update].uses)
      if (is_host(use)) out.push_back(piece.index < 0 ? use : u(part_of_state(use.value, piece)));
    return out;
  }

  // Room for all states of a bucket: one value, so that a plan has few to place.
  void begin_bucket(const Bucket& bucket, size_t k) {
    Value v;
    v.name = fmt::format("states.bucket{}", k);
    v.dtype = tensor::Dtype::U8, v.owner = Owner::Workspace;
    v.shape = {0};
    for (const Piece& piece : bucket) v.shape[0] += bytes_of(piece.update, piece.count);
    bucket_ = edit_.add(std::move(v)), filled_ = 0;
  }

  // The device's copy of a state, which the update uses from now on.
  ValueId device_of(Stage& update, ValueId host, const Piece& piece) {
    const Value& from = value(host);
    const ValueId whole = from.view_of == kNoValue ? host : from.view_of;
    Value v = from;
    v.name = value(whole).name + ".device" + (piece.index < 0 ? "" : fmt::format("[{}]", piece.index));
    v.space = Space::Device, v.life = Life::Step, v.owner = Owner::Workspace;
    v.view_of = bucket_, v.offset = filled_;
    filled_ += base::round_up(num_bytes(v), kAlign);
    const ValueId device = edit_.add(std::move(v));
    for (Use& use : update.uses)
      if (use.value == host) use.value = device;
    copies_.back().emplace_back(host, device);
    return device;
  }

  Stage copy_stage(Op op, int lane, ValueId from, ValueId to) {
    Stage s;
    s.op = op, s.phase = Phase::Update, s.part = num_copies_[op]++;
    s.lane = static_cast<int16_t>(lane);
    s.uses = {r(from), w(to)};
    return s;
  }

  Edit edit_;
  const int64_t bucket_bytes_;
  const ValueId num_values_ = static_cast<ValueId>(edit_.program().values.size());
  int in_ = 0, out_ = 0;
  int32_t num_updates_ = 0;
  StageId anchor_ = 0;
  ValueId bucket_ = kNoValue;  // that copies come into now
  int64_t filled_ = 0;         // of it, bytes
  std::map<Op, int32_t> num_copies_;
  std::map<std::pair<ValueId, int>, ValueId> parts_;
  std::vector<std::vector<std::pair<ValueId, ValueId>>> copies_;  // of each bucket: host, device
};

}  // namespace

bool has_device_states(const Program& p) {
  return std::any_of(p.values.begin(), p.values.end(),
                     [](const Value& v) { return is_state(v) && v.space == Space::Device; });
}

Program host_states(Program program, int64_t bucket_bytes) {
  return States(std::move(program), bucket_bytes).apply();
}

}  // namespace pleat::schedule
