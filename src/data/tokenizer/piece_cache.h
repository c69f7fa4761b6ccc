// Remembers the ids of pieces of text already encoded. One thread's; bounded memory: when it is full it
// starts again from empty.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace pleat::data {

// Not for hostile tables that outlive an encode call: only for lookups whose worst case is bounded elsewhere.
inline uint64_t hash_bytes(std::string_view bytes) {
  uint64_t h = 0x9e3779b97f4a7c15u ^ bytes.size();
  size_t at = 0;
  const auto mix = [&](uint64_t word) {
    h = (h ^ word) * 0xd6e8feb86659fd93u;
    h ^= h >> 32;
  };
  for (; at + 8 <= bytes.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, 8);
    mix(word);
  }
  if (at < bytes.size()) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, bytes.size() - at);
    mix(word);
  }
  return h * 0xd6e8feb86659fd93u ^ h >> 29;
}

class PieceCache {
 public:
  static constexpr size_t kMaxPieceBytes = 128;

  PieceCache() : slots_(kMinSlots) {}

  // Null when unknown. Valid until the next insert.
  const std::span<const int32_t>* find(std::string_view piece, uint64_t hash) const {
    for (size_t i = hash & mask();; i = (i + 1) & mask()) {
      const Slot& slot = slots_[i];
      if (slot.num_ids == 0) return nullptr;
      if (slot.hash == hash && slot.num_bytes == piece.size() &&
          std::memcmp(bytes_.data() + slot.bytes_at, piece.data(), piece.size()) == 0) {
        found_ = {ids_.data() + slot.ids_at, slot.num_ids};
        return &found_;
      }
    }
  }

  // Pieces that are long or give no id are not kept.
  void insert(std::string_view piece, uint64_t hash, std::span<const int32_t> ids) {
    if (piece.size() > kMaxPieceBytes || ids.empty()) return;
    if (2 * num_used_ >= slots_.size()) make_room();
    place({hash, static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(ids_.size()),
           static_cast<uint32_t>(piece.size()), static_cast<uint32_t>(ids.size())});
    bytes_.insert(bytes_.end(), piece.begin(), piece.end());
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    ++num_used_;
  }

 private:
  static constexpr size_t kMinSlots = 1 << 8;
  static constexpr size_t kMaxSlots = 1 << 17;

  struct Slot {
    uint64_t hash = 0;
    uint32_t bytes_at = 0, ids_at = 0;
    uint32_t num_bytes = 0, num_ids = 0;  // no ids: empty
  };

  size_t mask() const { return slots_.size() - 1; }

  void place(const Slot& slot) {
    size_t i = slot.hash & mask();
    while (slots_[i].num_ids != 0) i = (i + 1) & mask();
    slots_[i] = slot;
  }

  void make_room() {
    if (slots_.size() >= kMaxSlots) {
      std::fill(slots_.begin(), slots_.end(), Slot{});
      bytes_.clear();
      ids_.clear();
      num_used_ = 0;
      return;
    }
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old)
      if (slot.num_ids != 0) place(slot);
  }

  std::vector<Slot> slots_;
  std::vector<char> bytes_;
  std::vector<int32_t> ids_;
  size_t num_used_ = 0;
  mutable std::span<const int32_t> found_;
};

}  // namespace pleat::data
