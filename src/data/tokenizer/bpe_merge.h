// The merge loop of byte-pair encoding, common to pair tables and rank files.
//
// Always the pair of lowest rank, of equal ones the leftmost. Short pieces scan an array; long ones keep a
// heap over a linked list, so that a piece of a million symbols costs n log n and no stack.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

namespace pleat::data {

struct BpeSymbol {
  int32_t id = 0;
  uint32_t begin = 0, end = 0;  // bytes of the piece it covers
};

struct BpeCandidate {
  uint32_t rank = kNone;
  int32_t id = 0;  // of the merged symbol
  static constexpr uint32_t kNone = UINT32_MAX;
};

// Merges `symbols` in place until no pair can be merged. candidate(left, right) gives the merge of two
// neighbours, rank kNone where there is none.
template <class CandidateOf>
class BpeMerger {
 public:
  explicit BpeMerger(const CandidateOf& candidate) : candidate_(candidate) {}

  void run(std::vector<BpeSymbol>& symbols) {
    if (symbols.size() <= kShort)
      scan(symbols);
    else
      heap(symbols);
  }

 private:
  static constexpr size_t kShort = 48;

  void scan(std::vector<BpeSymbol>& symbols) {
    size_t n = symbols.size();
    if (n < 2) return;
    BpeCandidate pairs[kShort];
    for (size_t i = 0; i + 1 < n; ++i) pairs[i] = candidate_(symbols[i], symbols[i + 1]);
    for (;;) {
      size_t best = 0;
      for (size_t i = 1; i + 1 < n; ++i)
        if (pairs[i].rank < pairs[best].rank) best = i;
      if (n < 2 || pairs[best].rank == BpeCandidate::kNone) break;
      symbols[best].id = pairs[best].id;
      symbols[best].end = symbols[best + 1].end;
      for (size_t i = best + 1; i + 1 < n; ++i) {
        symbols[i] = symbols[i + 1];
        pairs[i] = pairs[i + 1];
      }
      --n;
      if (best + 1 < n) pairs[best] = candidate_(symbols[best], symbols[best + 1]);
      if (best > 0) pairs[best - 1] = candidate_(symbols[best - 1], symbols[best]);
    }
    symbols.resize(n);
  }

  struct Entry {
    uint32_t rank;
    uint32_t at;
    int32_t id;
    bool operator<(const Entry& other) const {  // std::priority_queue keeps the largest on top
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };

  void heap(std::vector<BpeSymbol>& symbols) {
    const auto n = static_cast<uint32_t>(symbols.size());
    constexpr uint32_t kEnd = UINT32_MAX;
    std::vector<uint32_t> next(n), previous(n);
    std::vector<Entry> entries;
    entries.reserve(n);
    std::vector<bool> dead(n, false);
    for (uint32_t i = 0; i < n; ++i) {
      next[i] = i + 1 < n ? i + 1 : kEnd;
      previous[i] = i > 0 ? i - 1 : kEnd;
      if (i + 1 < n)
        if (const BpeCandidate c = candidate_(symbols[i], symbols[i + 1]); c.rank != BpeCandidate::kNone)
          entries.push_back({c.rank, i, c.id});
    }
    std::priority_queue<Entry> queue(std::less<Entry>(), std::move(entries));
    while (!queue.empty()) {
      const Entry top = queue.top();
      queue.pop();
      if (dead[top.at] || next[top.at] == kEnd) continue;
      const uint32_t right = next[top.at];
      // An entry is out of date when its pair is not there any more.
      const BpeCandidate now = candidate_(symbols[top.at], symbols[right]);
      if (now.rank == BpeCandidate::kNone || now.id != top.id) continue;
      symbols[top.at].id = top.id;
      symbols[top.at].end = symbols[right].end;
      dead[right] = true;
      next[top.at] = next[right];
      if (next[right] != kEnd) previous[next[right]] = top.at;
      if (const uint32_t left = previous[top.at]; left != kEnd)
        if (const BpeCandidate c = candidate_(symbols[left], symbols[top.at]); c.rank != BpeCandidate::kNone)
          queue.push({c.rank, left, c.id});
      if (const uint32_t after = next[top.at]; after != kEnd)
        if (const BpeCandidate c = candidate_(symbols[top.at], symbols[after]); c.rank != BpeCandidate::kNone)
          queue.push({c.rank, top.at, c.id});
    }
    size_t kept = 0;
    for (uint32_t i = 0; i < n; ++i)
      if (!dead[i]) symbols[kept++] = symbols[i];
    symbols.resize(kept);
  }

  const CandidateOf& candidate_;
};

}  // namespace pleat::data
