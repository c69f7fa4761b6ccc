// Sums of rows that came back from several ranks, with the bits of a reduction over ranks of per-rank sums.
#include "kernels/dispatch/dispatch.h"
#include "kernels/dispatch/dispatch_rows.h"
#include "kernels/router/router.h"
#include "kernels/router/type_pair.h"

namespace pleat::kernels {
namespace {

using namespace dispatch;

// Where the rows of the local plan lie among those that came back.
class ReturnedRows {
 public:
  ReturnedRows(const Invocation& call, const Arg& offsets, int64_t num_rows)
      : offsets_(offsets.as<int32_t>()),
        experts_per_rank_(call.integer("experts_per_rank")),
        num_ranks_((offsets.dim(0) - 1) / experts_per_rank_),
        copies_(call.integer("copies")) {
    PLEAT_CHECK(copies_ * offsets_[offsets.dim(0) - 1] <= num_rows, "{} copies of {} rows in a value of {}",
                copies_, offsets_[offsets.dim(0) - 1], num_rows);
  }

  int64_t copies() const { return copies_; }
  int64_t num_ranks() const { return num_ranks_; }  // expert ranks
  int64_t begin(int64_t expert_rank) const { return offsets_[expert_rank * experts_per_rank_]; }
  int64_t count(int64_t expert_rank) const { return begin(expert_rank + 1) - begin(expert_rank); }
  int64_t rank_of(int64_t row) const {
    int64_t low = 0, high = num_ranks_ - 1;  // the last rank that begins at or before the row
    while (low < high) {
      const int64_t middle = (low + high + 1) / 2;
      if (begin(middle) <= row)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
  // Of copy 0; copy c lies c * count(expert_rank) further.
  int64_t place_of(int64_t row, int64_t expert_rank) const {
    return row + (copies_ - 1) * begin(expert_rank);
  }

 private:
  const int32_t* offsets_;
  int64_t experts_per_rank_, num_ranks_, copies_;
};

// The rows of one token, grouped by the rank they come back from.
class TokenRows {
 public:
  explicit TokenRows(const ReturnedRows& returned) : returned_(returned) {}

  void load(const int32_t* row_of, int64_t k) {
    int32_t rank[kMaxExperts];
    for (int64_t s = 0; s < k; ++s)
      rank[s] = row_of[s] < 0 ? -1 : static_cast<int32_t>(returned_.rank_of(row_of[s]));
    num_parts_ = 0;
    int32_t previous = -1;
    int64_t filled = 0;
    // Each round takes the lowest rank not yet taken: no more rounds than slots.
    while (true) {
      int32_t lowest = std::numeric_limits<int32_t>::max();
      for (int64_t s = 0; s < k; ++s)
        if (rank[s] > previous) lowest = std::min(lowest, rank[s]);
      if (lowest == std::numeric_limits<int32_t>::max()) break;
      part_rank_[num_parts_] = lowest;
      part_begin_[num_parts_++] = static_cast<int32_t>(filled);
      for (int64_t s = 0; s < k; ++s)
        if (rank[s] == lowest)
          places_[filled++] = static_cast<int32_t>(returned_.place_of(row_of[s], lowest));
      previous = lowest;
    }
    part_begin_[num_parts_] = static_cast<int32_t>(filled);
  }

  // total[c] = the sum over ranks of the sum over slots, columns [column, column + n) of rows.
  template <class C>
  void sum(const C* rows, int64_t width, int64_t column, int64_t n, double* __restrict total) const {
    C part[kChunk];
    bool first = true;
    for (int64_t p = 0; p < num_parts_; ++p)
      for (int64_t copy = 0; copy < returned_.copies(); ++copy) {
        const C* from = rows + copy * returned_.count(part_rank_[p]) * width;
        sum_rows(from, places_ + part_begin_[p], part_begin_[p + 1] - part_begin_[p], width, column, n, part);
        if (first)
          for (int64_t c = 0; c < n; ++c) total[c] = part[c];
        else
          for (int64_t c = 0; c < n; ++c) total[c] += part[c];
        first = false;
      }
    if (first) std::fill_n(total, n, 0.0);
    // What ranks without rows of this token add: it turns -0 into +0.
    if (num_parts_ < returned_.num_ranks())
      for (int64_t c = 0; c < n; ++c) total[c] += 0.0;
  }

 private:
  const ReturnedRows& returned_;
  int64_t num_parts_ = 0;
  int32_t places_[kMaxExperts], part_rank_[kMaxExperts], part_begin_[kMaxExperts + 1];
};

template <class C>
void sum_over_ranks(const Invocation& call, const ReturnedRows& returned, const C* rows, const Arg& token_row,
                    const Arg& y) {
  const bool add = y.into() == Into::Accumulate;
  const int32_t* row_of = token_row.as<int32_t>();
  C* to = y.as<C>();
  const int64_t T = y.dim(0), width = y.dim(1), k = token_row.dim(1);
  call.pool->for_each_tile(base::ceil_div(T, kTileRows), [&](int64_t tile) {
    TokenRows token(returned);
    double total[kChunk];
    for (int64_t t = tile * kTileRows; t < std::min(T, (tile + 1) * kTileRows); ++t) {
      token.load(row_of + t * k, k);
      for (int64_t column = 0; column < width; column += kChunk) {
        const int64_t n = std::min(kChunk, width - column);
        token.sum(rows, width, column, n, total);
        C* __restrict out = to + t * width + column;
        if (add)
          for (int64_t c = 0; c < n; ++c) out[c] += static_cast<C>(total[c]);
        else
          for (int64_t c = 0; c < n; ++c) out[c] = static_cast<C>(total[c]);
      }
    }
  });
}

template <class C>
struct CombineRanks {
  static void run(const Invocation& call) {
    const signature::combine_ranks::Forward<Arg> args(call.args);
    const ReturnedRows returned(call, args.offsets, args.rows.dim(0));
    sum_over_ranks(call, returned, args.rows.as<C>(), args.token_row, args.y);
  }
};

template <class C, class R>
struct PermuteRanks {
  static void run(const Invocation& call) {
    const signature::permute_ranks::BackwardInput<Arg> args(call.args);
    const ReturnedRows returned(call, args.offsets, args.drows.dim(0));
    sum_over_ranks(call, returned, args.drows.as<C>(), args.token_row, args.dx);
    const R* drow_probs = args.drow_probs.as<R>();
    const int32_t* token_row = args.token_row.as<int32_t>();
    R* dprobs = args.dprobs.as<R>();
    const int64_t num_choices = args.token_row.size(), tile_size = 16 * kTileRows;
    call.pool->for_each_tile(base::ceil_div(num_choices, tile_size), [&](int64_t tile) {
      for (int64_t i = tile * tile_size; i < std::min(num_choices, (tile + 1) * tile_size); ++i) {
        if (token_row[i] < 0) {
          dprobs[i] = 0;
          continue;
        }
        const int64_t rank = returned.rank_of(token_row[i]);
        const R* from = drow_probs + returned.place_of(token_row[i], rank);
        double total = from[0];
        for (int64_t copy = 1; copy < returned.copies(); ++copy) total += from[copy * returned.count(rank)];
        if (returned.num_ranks() > 1) total += 0.0;
        dprobs[i] = static_cast<R>(total);
      }
    });
  }
};

constexpr Binding kTable[] = {
    row<signature::combine_ranks::Forward, CombineRanks>([](const auto& a) { return a.rows.dtype; }),
    pair_row<signature::permute_ranks::BackwardInput, PermuteRanks>([](const auto& a) {
      return TypePair{a.drows.dtype, a.drow_probs.dtype};
    }),
};

}  // namespace

std::span<const Binding> combine_ranks_bindings() { return kTable; }

}  // namespace pleat::kernels
