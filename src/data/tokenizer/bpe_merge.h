// The merge loop of byte-pair encoding, common to pair tables and rank files.
//
// Always the pair of lowest rank, of equal ones the leftmost. Short pieces scan an array; long ones keep a
// tournament of ranks, so that a piece of a million symbols costs n log n, no stack, and 8 bytes of memory for
// each symbol beside the symbols themselves.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace pleat::data {

// What a pair table merges by.
struct BpeSymbol {
  int32_t id = 0;
  // Becomes itself and its right neighbour together.
  void take(const BpeSymbol&, int32_t merged) { id = merged; }
};

// Where merges are found by spelling.
struct BpeSpelledSymbol {
  int32_t id = 0;
  uint32_t begin = 0, end = 0;  // bytes of the piece it covers
  void take(const BpeSpelledSymbol& right, int32_t merged) {
    id = merged;
    end = right.end;
  }
};

// A word is held whole while it is merged, in up to 20 bytes for each of its own.
constexpr size_t kMostWordBytes = size_t{64} << 20;
inline void check_word(std::string_view word) {
  if (word.size() > kMostWordBytes)
    base::fail(
        "a word of {} bytes: the tokenizer finds no place to cut the text, and at most {} bytes are possible "
        "without one; split the text",
        word.size(), kMostWordBytes);
}

struct BpeCandidate {
  uint32_t rank = kNone;
  int32_t id = 0;  // of the merged symbol
  static constexpr uint32_t kNone = UINT32_MAX;
};

// Merges `symbols` in place until no pair can be merged. candidate(left, right) gives the merge of two
// neighbours, rank kNone where there is none.
template <class Symbol, class CandidateOf>
class BpeMerger {
 public:
  explicit BpeMerger(const CandidateOf& candidate) : candidate_(candidate) {}

  void run(std::vector<Symbol>& symbols) {
    if (symbols.size() <= kShort)
      scan(symbols);
    else
      long_piece(symbols);
  }

 private:
  static constexpr size_t kShort = 48;

  void scan(std::vector<Symbol>& symbols) {
    size_t n = symbols.size();
    if (n < 2) return;
    BpeCandidate pairs[kShort];
    for (size_t i = 0; i + 1 < n; ++i) pairs[i] = candidate_(symbols[i], symbols[i + 1]);
    for (;;) {
      size_t best = 0;
      for (size_t i = 1; i + 1 < n; ++i)
        if (pairs[i].rank < pairs[best].rank) best = i;
      if (n < 2 || pairs[best].rank == BpeCandidate::kNone) break;
      symbols[best].take(symbols[best + 1], pairs[best].id);
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

  // Each place knows the rank of the merge with its neighbour; a tournament over blocks of places finds the
  // lowest, the leftmost of equal ones.
  static constexpr size_t kBlock = 64;
  struct Best {
    uint32_t rank = BpeCandidate::kNone;
    uint32_t at = 0;
  };

  void choose_in(size_t block) {
    const size_t begin = block * kBlock, end = std::min(begin + kBlock, ranks_.size());
    Best best;
    for (size_t i = begin; i < end; ++i)
      if (ranks_[i] < best.rank) best = {ranks_[i], static_cast<uint32_t>(i)};
    tree_[leaves_ + block] = best;
  }
  void choose(size_t block) {
    choose_in(block);
    for (size_t node = (leaves_ + block) / 2; node > 0; node /= 2) join(node);
  }
  void join(size_t node) {
    const Best &left = tree_[2 * node], &right = tree_[2 * node + 1];
    tree_[node] = right.rank < left.rank ? right : left;
  }

  void long_piece(std::vector<Symbol>& symbols) {
    const size_t n = symbols.size();
    ranks_.assign(n, BpeCandidate::kNone);
    // Places a symbol takes, at its first place and at its last: so both neighbours are found.
    std::vector<uint32_t> places(n, 1);
    const auto rank_at = [&](size_t at) {
      const size_t next = at + places[at];
      ranks_[at] = next < n ? candidate_(symbols[at], symbols[next]).rank : BpeCandidate::kNone;
    };
    for (size_t i = 0; i < n; ++i) rank_at(i);
    const size_t num_blocks = (n + kBlock - 1) / kBlock;
    leaves_ = std::bit_ceil(num_blocks);
    tree_.assign(2 * leaves_, {});
    for (size_t block = 0; block < num_blocks; ++block) choose_in(block);
    for (size_t node = leaves_ - 1; node > 0; --node) join(node);
    while (tree_[1].rank != BpeCandidate::kNone) {
      const size_t at = tree_[1].at, right = at + places[at];
      symbols[at].take(symbols[right], candidate_(symbols[at], symbols[right]).id);
      const uint32_t together = places[at] + places[right];
      ranks_[right] = BpeCandidate::kNone;
      places[at] = places[at + together - 1] = together;
      rank_at(at);
      const size_t left = at > 0 ? at - places[at - 1] : at;
      if (at > 0) rank_at(left);
      choose(at / kBlock);
      if (right / kBlock != at / kBlock) choose(right / kBlock);
      if (left / kBlock != at / kBlock) choose(left / kBlock);
    }
    size_t kept = 0;
    for (size_t i = 0; i < n; i += places[i]) symbols[kept++] = symbols[i];
    symbols.resize(kept);
  }

  const CandidateOf& candidate_;
  std::vector<uint32_t> ranks_ = {};
  std::vector<Best> tree_ = {};
  size_t leaves_ = 0;
};

}  // namespace pleat::data
