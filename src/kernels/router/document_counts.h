// Top-k counts of every document of a microbatch, without memory per document.
//
// Tokens are cut into tiles by shape; a document may lie inside one tile or across several. gather() runs
// over all tiles once and keeps, per tile, the counts of the document that enters it from before (head) and
// of the last one that starts in it (tail); join() adds up the pieces of documents that cross tiles. A
// document inside a tile is counted when the tile is walked again. The counts of the whole microbatch are a
// by-product.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/router/router.h"
#include "kernels/router/token_tiles.h"
#include "kernels/router/top_k.h"

namespace pleat::kernels {

template <class R>
class DocumentCounts {
 public:
  struct View {
    const int32_t* counts;  // [E]
    int64_t tokens;         // valid tokens
    int64_t end;            // first token after the document, at most the end of the tile
  };

  DocumentCounts(const R* logits, const uint8_t* valid, const int32_t* doc_start, int64_t num_tokens,
                 int64_t experts, int64_t top_k)
      : tiles_(num_tokens, std::min(kMaxTiles, kCells / 2 / experts)),
        logits_(logits),
        valid_(valid),
        doc_start_(doc_start),
        experts_(experts),
        top_k_(top_k) {}

  const TokenTiles& tiles() const { return tiles_; }
  int64_t num_valid() const { return num_valid_; }
  const int64_t* counts() const { return counts_; }  // of the microbatch

  void gather(device::Pool& pool) {
    std::fill_n(counts_, experts_, int64_t{0});
    num_valid_ = 0;
    pool.for_each_tile(tiles_.num_tiles, [&](int64_t tile) { gather_tile(tile); });
    join();
  }

  // The document that token t lies in; t is the first token of a tile or of a document. `own` [E] is room for
  // the counts.
  View document_at(int64_t tile, int64_t t, int32_t* own) const {
    int64_t end = t + 1;
    while (end < tiles_.end(tile) && doc_start_[end] != end) ++end;
    if (doc_start_[t] != t) return {head(tile), head_tokens_[tile], end};
    if (end == tiles_.end(tile)) return {tail(tile), tail_tokens_[tile], end};
    std::fill_n(own, experts_, 0);
    return {own, count(t, end, own), end};
  }

 private:
  static constexpr int64_t kCells = 65536;

  int32_t* head(int64_t tile) { return cells_ + 2 * tile * experts_; }
  int32_t* tail(int64_t tile) { return cells_ + (2 * tile + 1) * experts_; }
  const int32_t* head(int64_t tile) const { return cells_ + 2 * tile * experts_; }
  const int32_t* tail(int64_t tile) const { return cells_ + (2 * tile + 1) * experts_; }

  int64_t count(int64_t begin, int64_t end, int32_t* counts) const {
    TopK<R> chosen(top_k_);
    int32_t top[kMaxExperts];
    int64_t seen = 0;
    for (int64_t t = begin; t < end; ++t) {
      if (!valid_[t]) continue;
      ++seen;
      choose_top(logits_ + t * experts_, experts_, top_k_, chosen, top);
      for (int64_t i = 0; i < top_k_; ++i) ++counts[top[i]];
    }
    return seen;
  }

  void gather_tile(int64_t tile) {
    const int64_t begin = tiles_.begin(tile), end = tiles_.end(tile);
    int64_t first_start = begin, last_start = end;  // of the documents that start in this tile
    while (first_start < end && doc_start_[first_start] != first_start) ++first_start;
    while (last_start > first_start && (last_start == end || doc_start_[last_start] != last_start))
      --last_start;
    std::fill_n(head(tile), experts_, 0);
    std::fill_n(tail(tile), experts_, 0);
    head_tokens_[tile] = count(begin, first_start, head(tile));
    tail_tokens_[tile] = first_start < end ? count(last_start, end, tail(tile)) : 0;
    has_start_[tile] = first_start < end;
    int32_t inner[kMaxExperts];
    std::fill_n(inner, experts_, 0);
    const int64_t between = first_start < end ? count(first_start, last_start, inner) : 0;
    for (int64_t e = 0; e < experts_; ++e) add_counter(counts_[e], head(tile)[e] + inner[e] + tail(tile)[e]);
    add_counter(num_valid_, head_tokens_[tile] + between + tail_tokens_[tile]);
  }

  // Adds the heads of tiles (from, to] to the tail of `from`, and gives all of them the sum.
  void join_span(int64_t from, int64_t to) {
    for (int64_t e = 0; e < experts_; ++e) {
      int32_t sum = tail(from)[e];
      for (int64_t tile = from + 1; tile <= to; ++tile) sum += head(tile)[e];
      tail(from)[e] = sum;
      for (int64_t tile = from + 1; tile <= to; ++tile) head(tile)[e] = sum;
    }
    int64_t tokens = tail_tokens_[from];
    for (int64_t tile = from + 1; tile <= to; ++tile) tokens += head_tokens_[tile];
    tail_tokens_[from] = tokens;
    for (int64_t tile = from + 1; tile <= to; ++tile) head_tokens_[tile] = tokens;
  }

  void join() {
    for (int64_t from = 0; from < tiles_.num_tiles;) {
      int64_t to = from;
      while (to + 1 < tiles_.num_tiles && doc_start_[tiles_.begin(to + 1)] != tiles_.begin(to + 1)) {
        ++to;
        if (has_start_[to]) break;
      }
      join_span(from, to);
      from = to == from ? from + 1 : to;
    }
  }

  TokenTiles tiles_;
  const R* logits_;
  const uint8_t* valid_;
  const int32_t* doc_start_;
  int64_t experts_, top_k_, num_valid_ = 0;
  int64_t counts_[kMaxExperts];
  int64_t head_tokens_[kMaxTiles], tail_tokens_[kMaxTiles];
  bool has_start_[kMaxTiles];
  int32_t cells_[kCells];
};

}  // namespace pleat::kernels
