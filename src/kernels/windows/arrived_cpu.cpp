// What others have stored into this rank's window: rows into the order of experts, sums into tokens.
#include <algorithm>
#include <limits>

#include "kernels/dispatch/dispatch_rows.h"
#include "kernels/router/type_pair.h"
#include "kernels/windows/windows.h"

namespace pleat::kernels {
namespace {

using dispatch::kChunk;
using dispatch::kTileRows;

// Nothing came: what was read must not be used.
template <class C>
bool refuse_unmet(const Arg& met, const Arg& out) {
  if (met.as<uint8_t>()[0] != 0) return false;
  std::fill_n(out.as<C>(), out.size(), std::numeric_limits<C>::quiet_NaN());
  return true;
}

template <class C>
void place(const Invocation& call, const Arg& sent, const Arg& source_row, const Arg& offsets,
           const Arg& rows) {
  const int64_t used = offsets.as<int32_t>()[offsets.dim(0) - 1], width = rows.dim(1);
  if (used > rows.dim(0))
    base::fail_with(base::ExitCode::Internal, "[place_rows] {} rows of a value of {}", used, rows.dim(0));
  const int32_t* source = source_row.as<int32_t>();
  call.pool->for_each_tile(base::ceil_div(used, kTileRows), [&](int64_t tile) {
    for (int64_t r = tile * kTileRows; r < std::min(used, (tile + 1) * kTileRows); ++r) {
      C* to = rows.as<C>() + r * width;
      if (source[r] < 0) {
        std::fill_n(to, width, C(0));
        continue;
      }
      if (source[r] >= sent.dim(0))
        base::fail_with(base::ExitCode::Internal, "[place_rows] row {} is row {} of {} sent", r, source[r],
                        sent.dim(0));
      std::copy_n(sent.as<C>() + source[r] * width, width, to);
    }
  });
}

template <class C, class R>
struct PlaceRows {
  static void run(const Invocation& call) {
    const signature::place_rows::Forward<Arg> args(call.args);
    const int64_t used = args.offsets.template as<int32_t>()[args.offsets.dim(0) - 1];
    if (refuse_unmet<C>(args.met, args.rows)) return;
    place<C>(call, args.sent, args.sent_source, args.offsets, args.rows);
    std::copy_n(args.sent_probs.template as<R>(), used, args.row_probs.template as<R>());
    std::copy_n(args.sent_source.template as<int32_t>(), used, args.source_row.template as<int32_t>());
    std::copy_n(args.sent_lists.template as<int32_t>(), args.sent_lists.size(),
                args.token_rows.template as<int32_t>());
  }
};

template <class C>
struct PlaceGradients {
  static void run(const Invocation& call) {
    const signature::place_rows::BackwardInput<Arg> args(call.args);
    if (refuse_unmet<C>(args.met, args.rows)) return;
    place<C>(call, args.sent, args.source_row, args.offsets, args.rows);
  }
};

// Where token t's sum of expert rank p lies: of copy 0; copy c lies c * count further.
struct Returned {
  const int32_t *slot, *offsets;
  int64_t num_ranks, copies;

  Returned(const Invocation& call, const Arg& token_slot, const Arg& token_offsets)
      : slot(token_slot.as<int32_t>()),
        offsets(token_offsets.as<int32_t>()),
        num_ranks(token_slot.dim(1)),
        copies(call.integer("copies")) {}
  int64_t count(int64_t p) const { return offsets[p + 1] - offsets[p]; }
  bool is_sent(int64_t t, int64_t p) const { return slot[t * num_ranks + p] >= 0; }
  int64_t row(int64_t t, int64_t p) const { return copies * offsets[p] + slot[t * num_ranks + p]; }
};

template <class C>
void add_up(const Invocation& call, const Returned& returned, const Arg& sums, const Arg& y) {
  const bool add = y.into() == Into::Accumulate;
  const int64_t T = y.dim(0), width = y.dim(1);
  call.pool->for_each_tile(base::ceil_div(T, kTileRows), [&](int64_t tile) {
    double total[kChunk];
    for (int64_t t = tile * kTileRows; t < std::min(T, (tile + 1) * kTileRows); ++t)
      for (int64_t column = 0; column < width; column += kChunk) {
        const int64_t n = std::min(kChunk, width - column);
        int64_t parts = 0;
        for (int64_t p = 0; p < returned.num_ranks; ++p) {
          if (!returned.is_sent(t, p)) continue;
          for (int64_t c = 0; c < returned.copies; ++c, ++parts) {
            const C* from = sums.as<C>() + (returned.row(t, p) + c * returned.count(p)) * width + column;
            if (parts == 0)
              for (int64_t i = 0; i < n; ++i) total[i] = from[i];
            else
              for (int64_t i = 0; i < n; ++i) total[i] += from[i];
          }
        }
        if (parts == 0) std::fill_n(total, n, 0.0);
        // What ranks without rows of this token add: it turns -0 into +0.
        if (parts < returned.num_ranks * returned.copies)
          for (int64_t i = 0; i < n; ++i) total[i] += 0.0;
        C* out = y.as<C>() + t * width + column;
        if (add)
          for (int64_t i = 0; i < n; ++i) out[i] += static_cast<C>(total[i]);
        else
          for (int64_t i = 0; i < n; ++i) out[i] = static_cast<C>(total[i]);
      }
  });
}

template <class C>
struct AddSums {
  static void run(const Invocation& call) {
    const signature::add_sums::Forward<Arg> args(call.args);
    if (refuse_unmet<C>(args.met, args.y)) return;
    add_up<C>(call, Returned(call, args.token_slot, args.token_offsets), args.sums, args.y);
  }
};

template <class C, class R>
struct AddGradients {
  static void run(const Invocation& call) {
    const signature::add_sums::BackwardInput<Arg> args(call.args);
    if (refuse_unmet<C>(args.met, args.dx)) return;
    const Returned returned(call, args.token_slot, args.token_offsets);
    add_up<C>(call, returned, args.sums, args.dx);
    const int64_t T = args.idx.dim(0), k = args.idx.dim(1), K = args.prob_sums.dim(1),
                  El = call.integer("experts_per_rank");
    const int32_t *idx = args.idx.template as<int32_t>(), *token_row = args.token_row.template as<int32_t>();
    const R* from = args.prob_sums.template as<R>();
    R* to = args.dprobs.template as<R>();
    for (int64_t t = 0; t < T; ++t) {
      int64_t before = -1, listed = 0;  // how many kept slots of the same rank came before
      for (int64_t s = t * k; s < (t + 1) * k; ++s) {
        const int64_t p = idx[s] / El;
        if (p != before) before = p, listed = 0;
        if (token_row[s] < 0) {
          to[s] = 0;
          continue;
        }
        double total = 0;
        for (int64_t c = 0; c < returned.copies; ++c) {
          const R x = from[(returned.row(t, p) + c * returned.count(p)) * K + listed];
          total = c == 0 ? double(x) : total + x;
        }
        if (returned.num_ranks > 1) total += 0.0;
        to[s] = static_cast<R>(total);
        ++listed;
      }
    }
  }
};

constexpr Binding kTable[] = {
    pair_row<signature::place_rows::Forward, PlaceRows>([](const auto& a) {
      return TypePair{a.sent.dtype, a.sent_probs.dtype};
    }),
    row<signature::place_rows::BackwardInput, PlaceGradients>([](const auto& a) { return a.sent.dtype; }),
    row<signature::add_sums::Forward, AddSums>([](const auto& a) { return a.sums.dtype; }),
    pair_row<signature::add_sums::BackwardInput, AddGradients>([](const auto& a) {
      return TypePair{a.sums.dtype, a.prob_sums.dtype};
    }),
};

}  // namespace

std::span<const Binding> arrived_bindings() { return kTable; }

}  // namespace pleat::kernels
