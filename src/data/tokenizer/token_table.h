// Tokens by id and ids by token. Spellings lie in one buffer; ids may have holes, within reason.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pleat::data {

class TokenTable {
 public:
  // `num_expected` bounds the ids that are accepted: a file of a few entries must not ask for a table of
  // billions.
  explicit TokenTable(size_t num_expected);

  // Throws when the id is negative or out of reason, or when id or spelling are there already.
  void add(std::string_view token, int64_t id, std::string_view where);

  // -1 when there is none.
  int32_t find(std::string_view token) const;
  bool has(int64_t id) const;
  // `id` must be there.
  std::string_view text(int32_t id) const;

  int64_t num_tokens() const { return num_tokens_; }
  int64_t max_id() const { return static_cast<int64_t>(by_id_.size()) - 1; }

 private:
  struct Entry {
    uint32_t begin = 0, size = kHole;
  };
  static constexpr uint32_t kHole = UINT32_MAX;

  void grow();

  int64_t id_limit_;
  std::string buffer_;
  std::vector<Entry> by_id_;
  std::vector<int32_t> slots_;  // open addressing; -1: free
  int64_t num_tokens_ = 0;
};

// (left id, right id) -> (rank, id of the merged token). Later entries replace earlier ones.
class PairTable {
 public:
  struct Value {
    uint32_t rank = UINT32_MAX;
    int32_t id = 0;
  };

  explicit PairTable(size_t num_expected);
  void set(int32_t left, int32_t right, Value value);

  // Rank UINT32_MAX when there is none.
  Value find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (size_t i = slot_of(key);; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return slots_[i].value;
      if (slots_[i].key == kFree) return {};
    }
  }

 private:
  static constexpr uint64_t kFree = UINT64_MAX;
  struct Slot {
    uint64_t key = kFree;
    Value value = {};
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t key) const {
    uint64_t h = key * 0x9e3779b97f4a7c15u;
    h ^= h >> 29;
    return static_cast<size_t>(h * 0xbf58476d1ce4e5b9u >> shift_);
  }

  std::vector<Slot> slots_;
  size_t mask_ = 0;
  int shift_ = 0;
};

}  // namespace pleat::data
