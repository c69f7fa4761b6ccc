// Packing by turns. A turn's entry is what is known to be finished when its first compute stage starts; it
// grows from turn to turn. A value is over at the first turn whose entry covers its last uses, and begins no
// later than the turn whose entry is covered by what its first uses wait for. So values whose spans of turns
// do not meet are ordered, whatever lanes they live on, and packing needs whole numbers only.
#include <algorithm>
#include <limits>
#include <tuple>
#include <unordered_map>

#include "interpret/plan/pack.h"
#include "program/turns.h"

namespace pleat::interpret {

using namespace program;

namespace {

constexpr int64_t kSlotSlack = 128;  // sizes that differ by less than a 128th share slots

struct TurnSpan {
  int begin = 0, end = 0;  // turns, both included
};

class FramePacker {
 public:
  FramePacker(const Program& program, const Order& order, const Lifetimes& lives)
      : p_(program), order_(order), lives_(lives), turns_(turns(program)), lanes_(order.num_lanes()) {
    turn_of_.resize(p_.stages.size());
    for (size_t t = 0; t < turns_.size(); ++t)
      for (StageId s = turns_[t].begin; s < turns_[t].end; ++s) turn_of_[size_t(s)] = static_cast<int>(t);
    find_entries();
  }

  int64_t pack(const std::vector<size_t>& values, int64_t floor, std::vector<int64_t>& offset) {
    std::vector<Kept> kept;
    inside_.assign(turns_.size(), {});
    is_inside_.assign(p_.values.size(), 0);
    for (const size_t v : values) {
      const TurnSpan span = span_of(v);
      if (span.begin == span.end) {
        inside_[size_t(span.begin)].push_back(v);
        is_inside_[v] = 1;
      } else {
        kept.push_back({span, own_lane(v), v});
      }
    }
    std::stable_sort(kept.begin(), kept.end(),
                     [](const Kept& a, const Kept& b) { return a.frame() < b.frame(); });
    std::vector<Item> items;
    for (size_t first = 0, last = 0; first < kept.size(); first = last) {
      std::vector<size_t> together;
      for (; last < kept.size() && kept[last].frame() == kept[first].frame(); ++last)
        together.push_back(kept[last].value);
      items.push_back(frame_item(kept[first].span, kept[first].lane, together));
    }
    for (size_t t = 0; t < turns_.size(); ++t)
      if (!inside_[t].empty()) items.push_back(turn_item(t));
    return place(std::move(items), floor, offset);
  }

 private:
  struct Item {
    TurnSpan span;
    int64_t bytes = 0;
    std::vector<std::pair<size_t, int64_t>> values;  // with offsets inside
  };

  struct Kept {
    TurnSpan span;
    int lane = -1;  // own_lane
    size_t value = 0;
    std::tuple<int, int, int> frame() const { return {span.begin, span.end, lane}; }
  };

  // The lane all uses are on, unless it is the compute lane or there are several: -1. Buffers of messages
  // that no other lane sees follow each other, though to the turns they are all alive together.
  int own_lane(size_t v) const {
    int found = -1;
    for (int l = 0; l < lanes_; ++l) {
      if (lives_.first(v, l) < 0) continue;
      if (l == kComputeLane || found >= 0) return -1;
      found = l;
    }
    return found;
  }

  Item frame_item(TurnSpan span, int lane, const std::vector<size_t>& values) {
    Item item{span, 0, {}};
    if (lane >= 0) {
      scratch_.resize(p_.values.size());
      item.bytes = pack_values(p_, order_, lives_, values, 0, scratch_);
      for (const size_t v : values) item.values.emplace_back(v, scratch_[v]);
      return item;
    }
    for (const size_t v : values) {
      item.values.emplace_back(v, item.bytes);
      item.bytes += padded_bytes(p_.values[v]);
    }
    return item;
  }

  void find_entries() {
    const size_t n = turns_.size(), lanes = size_t(lanes_);
    entry_.assign((n + 1) * lanes, std::numeric_limits<int>::max());
    for (size_t t = n; t-- > 0;) {
      StageId first = turns_[t].begin;
      while (first < turns_[t].end && p_.stages[size_t(first)].lane != kComputeLane) ++first;
      for (size_t l = 0; l < lanes; ++l)
        entry_[t * lanes + l] =
            first < turns_[t].end ? order_.clock(first, static_cast<int>(l)) : entry_[(t + 1) * lanes + l];
    }
  }
  int entry(int turn, int lane) const { return entry_[size_t(turn) * size_t(lanes_) + size_t(lane)]; }

  TurnSpan span_of(size_t v) const {
    const Lifetime& life = lives_[v];
    const int last_turn = static_cast<int>(turns_.size()) - 1;
    if (life.first_in_list < 0) return {0, last_turn};  // nothing uses it; alive all along
    TurnSpan span{turn_of_[size_t(life.first_in_list)], turn_of_[size_t(life.last_in_list)]};
    if (life.from_start) span.begin = 0;
    if (life.to_end) span.end = last_turn;
    const auto finished_before = [&](int turn) {
      for (int l = 0; l < lanes_; ++l) {
        const StageId last = lives_.last(v, l);
        if (last >= 0 && order_.position_on_lane(last) > entry(turn, l)) return false;
      }
      return true;
    };
    const auto begins_behind = [&](int turn) {
      for (int l = 0; l < lanes_; ++l) {
        const StageId first = lives_.first(v, l);
        if (first < 0) continue;
        for (int k = 0; k < lanes_; ++k)
          if (order_.clock(first, k) < entry(turn, k)) return false;
      }
      return true;
    };
    while (span.end < last_turn && !finished_before(span.end + 1)) ++span.end;
    while (span.begin > 0 && !begins_behind(span.begin)) --span.begin;
    return span;
  }

  // What is packed inside a turn depends on its stages alone: any path between two of them stays inside it.
  // So turns that read the same, value by value in order of appearance, are packed once.
  Item turn_item(size_t t) {
    std::vector<size_t> order_seen;
    local_.clear();
    uint64_t hash = 0xcbf29ce484222325u;
    const auto mix = [&](int64_t x) {
      hash = (hash ^ static_cast<uint64_t>(x)) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 31;
    };
    for (StageId s = turns_[t].begin; s < turns_[t].end; ++s) {
      const Stage& stage = p_.stages[size_t(s)];
      mix(stage.lane), mix(static_cast<int64_t>(stage.uses.size()));
      for (const StageId before : stage.after)
        if (before >= turns_[t].begin) mix(before - turns_[t].begin);
      for (const Use& use : stage.uses) {
        if (use.value == kNoValue) continue;
        const size_t root = size_t(root_of(p_, use.value));
        const auto [it, fresh] = local_.try_emplace(root, local_.size());
        const bool inside = is_inside_[root];
        if (fresh && inside) order_seen.push_back(root);
        const Value& v = p_.values[size_t(use.value)];
        mix(static_cast<int64_t>(it->second)), mix(inside), mix(use.access != Access::Read);
        mix(v.view_of == kNoValue ? 0 : v.offset), mix(num_bytes(v));
        if (fresh) mix(num_bytes(p_.values[root]));
      }
      if (stage.scratch == kNoValue) continue;
      const size_t scratch = size_t(stage.scratch);
      if (is_inside_[scratch]) order_seen.push_back(scratch);
      mix(is_inside_[scratch]), mix(num_bytes(p_.values[scratch]));
    }
    Item item{{static_cast<int>(t), static_cast<int>(t)}, 0, {}};
    auto [known, fresh] = packed_.try_emplace(hash);
    if (fresh) {
      scratch_.resize(p_.values.size());
      known->second.bytes = pack_values(p_, order_, lives_, order_seen, 0, scratch_);
      for (const size_t v : order_seen) known->second.offsets.push_back(scratch_[v]);
    }
    item.bytes = known->second.bytes;
    for (size_t i = 0; i < order_seen.size(); ++i)
      item.values.emplace_back(order_seen[i], known->second.offsets[i]);
    return item;
  }

  int64_t place(std::vector<Item> items, int64_t floor, std::vector<int64_t>& offset) const {
    // Large ones first. Items of almost one size take slots of one size, in the order they begin: then no
    // more slots are needed than items are alive together.
    std::stable_sort(items.begin(), items.end(),
                     [](const Item& a, const Item& b) { return a.bytes > b.bytes; });
    for (size_t first = 0; first < items.size();) {
      size_t last = first;
      const int64_t slot = items[first].bytes;
      for (; last < items.size() && items[last].bytes >= slot - slot / kSlotSlack; ++last)
        items[last].bytes = slot;
      std::stable_sort(items.begin() + static_cast<std::ptrdiff_t>(first),
                       items.begin() + static_cast<std::ptrdiff_t>(last),
                       [](const Item& a, const Item& b) { return a.span.begin < b.span.begin; });
      first = last;
    }
    struct Placed {
      int begin, end;
      int64_t from, to;
    };
    std::vector<Placed> placed;  // by address, so that the first fit is one walk
    int64_t end = floor;
    for (const Item& item : items) {
      int64_t at = floor;
      for (const Placed& q : placed) {
        if (q.begin > item.span.end || item.span.begin > q.end) continue;
        if (q.from - at >= item.bytes) break;
        at = std::max(at, q.to);
      }
      const auto behind = std::upper_bound(placed.begin(), placed.end(), at,
                                           [](int64_t x, const Placed& q) { return x < q.from; });
      placed.insert(behind, {item.span.begin, item.span.end, at, at + item.bytes});
      end = std::max(end, at + item.bytes);
      for (const auto& [v, inner] : item.values) offset[v] = at + inner;
    }
    return end;
  }

  struct PackedTurn {
    int64_t bytes = 0;
    std::vector<int64_t> offsets;
  };

  const Program& p_;
  const Order& order_;
  const Lifetimes& lives_;
  std::vector<Turn> turns_;
  int lanes_;
  std::vector<int> turn_of_, entry_;
  std::vector<std::vector<size_t>> inside_;
  std::vector<char> is_inside_;
  std::unordered_map<size_t, size_t> local_;
  std::unordered_map<uint64_t, PackedTurn> packed_;
  std::vector<int64_t> scratch_;
};

}  // namespace

int64_t pack_frames(const Program& program, const Order& order, const Lifetimes& lives,
                    const std::vector<size_t>& values, int64_t floor, std::vector<int64_t>& offset) {
  return FramePacker(program, order, lives).pack(values, floor, offset);
}

}  // namespace pleat::interpret
