// The order of routed rows. Work space is token_row: it has one cell per choice, so that choices can be
// sorted by expert even where fewer rows than choices will be kept.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/dispatch/dispatch.h"
#include "kernels/dispatch/dispatch_rows.h"
#include "kernels/router/router.h"

namespace pleat::kernels {
namespace {

using namespace dispatch;

// Keeps the `capacity` choices of [first, last) with the largest probability, in token order, at the front.
template <class R>
void keep_largest(int32_t* first, int32_t* last, int64_t capacity, const R* probs) {
  const auto key = [probs](int32_t choice) {
    const R p = probs[choice];
    return p == p ? p : -std::numeric_limits<R>::infinity();
  };
  const auto before = [&](int32_t a, int32_t b) { return key(a) != key(b) ? key(a) > key(b) : a < b; };
  std::nth_element(first, first + capacity, last, before);
  std::sort(first, first + capacity);
}

template <class R>
struct Plan {
  static void run(const Invocation& call) {
    const signature::dispatch_plan::Forward<Arg> args(call.args);
    const int32_t* idx = args.idx.as<int32_t>();
    const R* probs = args.probs.as<R>();
    const int32_t* piece = args.piece.as<int32_t>();
    int32_t *offsets = args.offsets.as<int32_t>(), *row_token = args.row_token.as<int32_t>(),
            *row_slot = args.row_slot.as<int32_t>(), *token_row = args.token_row.as<int32_t>();
    int64_t* dropped = args.dropped.as<int64_t>();
    const int64_t T = args.idx.dim(0), k = args.idx.dim(1), budget = args.row_token.dim(0);
    const int64_t num_experts = args.offsets.dim(0) - 1, pieces = piece ? call.integer("pieces") : 1;
    // What has a capacity of its own: an expert, or an expert and a piece of the tokens.
    const int64_t E = num_experts * pieces;
    const auto bucket = [&](int64_t choice) {
      return piece ? idx[choice] * pieces + piece[choice / k] : idx[choice];
    };
    const int64_t capacity = call.integer("capacity");
    const bool by_probability = call.integer("policy") == 0, pad = call.integer("pad") != 0;

    int64_t count[kMaxExperts], next[kMaxExperts], first_row[kMaxExperts];
    std::fill_n(count, E, int64_t{0});
    for (int64_t i = 0; i < T * k; ++i) {
      if (idx[i] < 0 || idx[i] >= num_experts)
        base::fail_with(base::ExitCode::Internal, "[dispatch_plan] choice {} is expert {} of {}", i, idx[i],
                        num_experts);
      if (piece && (piece[i / k] < 0 || piece[i / k] >= pieces))
        base::fail_with(base::ExitCode::Internal, "[dispatch_plan] token {} is in piece {} of {}", i / k,
                        piece[i / k], pieces);
      ++count[bucket(i)];
    }
    int64_t num_rows = 0, num_dropped = 0;
    for (int64_t e = 0; e < E; ++e) {
      const int64_t kept = capacity > 0 ? std::min(count[e], capacity) : count[e];
      num_rows += pad ? capacity : kept;
      num_dropped += count[e] - kept;
    }
    check_budget("dispatch_plan", num_rows, budget);

    if (num_dropped == 0) {
      int64_t row = 0;
      for (int64_t e = 0; e < E; ++e) {
        first_row[e] = row;
        next[e] = row;
        row += pad ? capacity : count[e];
      }
      for (int64_t t = 0; t < T; ++t)
        for (int64_t s = 0; s < k; ++s) {
          const int64_t r = next[bucket(t * k + s)]++;
          row_token[r] = static_cast<int32_t>(t);
          row_slot[r] = static_cast<int32_t>(s);
          token_row[t * k + s] = static_cast<int32_t>(r);
        }
      if (pad)
        for (int64_t e = 0; e < E; ++e) fill_rows(row_token, row_slot, next[e], first_row[e] + capacity);
    } else {
      int64_t cell = 0;
      for (int64_t e = 0; e < E; ++e) {
        next[e] = cell;
        cell += count[e];
      }
      for (int64_t i = 0; i < T * k; ++i) token_row[next[bucket(i)]++] = static_cast<int32_t>(i);
      int64_t row = 0;
      for (int64_t e = 0; e < E; ++e) {
        int32_t *last = token_row + next[e], *first = last - count[e];
        if (count[e] > capacity && by_probability) keep_largest(first, last, capacity, probs);
        const int64_t kept = std::min(count[e], capacity);
        first_row[e] = row;
        for (int64_t i = 0; i < kept; ++i, ++row) {
          row_token[row] = static_cast<int32_t>(first[i] / k);
          row_slot[row] = static_cast<int32_t>(first[i] % k);
        }
        if (pad) {
          fill_rows(row_token, row_slot, row, first_row[e] + capacity);
          row = first_row[e] + capacity;
        }
      }
      std::fill_n(token_row, T * k, -1);
      for (int64_t r = 0; r < row; ++r)
        if (row_token[r] >= 0) token_row[row_token[r] * k + row_slot[r]] = static_cast<int32_t>(r);
    }
    for (int64_t e = 0; e < num_experts; ++e) offsets[e] = static_cast<int32_t>(first_row[e * pieces]);
    offsets[num_experts] = static_cast<int32_t>(num_rows);
    fill_rows(row_token, row_slot, num_rows, budget);
    dropped[0] = (args.dropped.into() == Into::Accumulate ? dropped[0] : 0) + num_dropped;
  }
};

constexpr Binding kTable[] = {
    row<signature::dispatch_plan::Forward, Plan>([](const auto& a) { return a.probs.dtype; }),
};

}  // namespace

std::span<const Binding> dispatch_plan_bindings() { return kTable; }

}  // namespace pleat::kernels
