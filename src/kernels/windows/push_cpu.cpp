// Stores into other ranks' windows: rows to experts, sums back to tokens.
#include <algorithm>

#include "kernels/dispatch/dispatch_rows.h"
#include "kernels/router/router.h"
#include "kernels/router/type_pair.h"
#include "kernels/windows/group_tokens.h"
#include "kernels/windows/windows.h"

namespace pleat::kernels {
namespace {

using dispatch::kChunk;
using dispatch::kTileRows;
using windows::GroupTokens;

void require_room(const Arg& to, int64_t row) {
  if (row < 0 || row >= to.dim(0))
    base::fail_with(base::ExitCode::Internal, "[{}] row {} of '{}', which has {}", to.kernel, row, to.name,
                    to.dim(0));
}

// Where this rank's tokens begin at every expert rank.
class First {
 public:
  explicit First(const GroupTokens& tokens) {
    PLEAT_CHECK(tokens.expert_ranks() <= kMaxExperts, "{} expert ranks", tokens.expert_ranks());
    for (int64_t p = 0; p < tokens.expert_ranks(); ++p) at_[p] = static_cast<int32_t>(tokens.first_there(p));
  }
  int64_t operator[](int64_t p) const { return at_[p]; }

 private:
  int32_t at_[kMaxExperts];
};

template <class C>
void push_tokens(const Invocation& call, const GroupTokens& tokens, const First& first, const Arg& x,
                 const Arg& token_slot, const Arg& rows) {
  const int64_t T = x.dim(0), width = x.dim(1), P = tokens.expert_ranks();
  const int32_t* slot = token_slot.as<int32_t>();
  const C* from = x.as<C>();
  call.pool->for_each_tile(base::ceil_div(T, kTileRows), [&](int64_t tile) {
    for (int64_t t = tile * kTileRows; t < std::min(T, (tile + 1) * kTileRows); ++t)
      for (int64_t p = 0; p < P; ++p) {
        if (slot[t * P + p] < 0) continue;
        const int64_t row = first[p] + slot[t * P + p];
        require_room(rows, row);
        for (int64_t c = 0; c < tokens.copies(); ++c)
          std::copy_n(from + t * width, width,
                      call.windows.of<C>(static_cast<int>(p * tokens.copies() + c), rows) + row * width);
      }
  });
}

template <class C, class R>
struct PushRows {
  static void run(const Invocation& call) {
    const signature::push_rows::Forward<Arg> args(call.args);
    const GroupTokens tokens(call, args.all_tokens, args.coords);
    const First first(tokens);
    push_tokens<C>(call, tokens, first, args.x, args.token_slot, args.rows);
    const int64_t T = args.x.dim(0), k = args.idx.dim(1), P = tokens.expert_ranks(),
                  E = args.offsets.dim(0) - 1, El = E / P, K = args.token_rows.dim(1);
    const int32_t *idx = args.idx.as<int32_t>(), *token_row = args.token_row.as<int32_t>(),
                  *offsets = args.offsets.as<int32_t>(), *row_base = args.row_base.as<int32_t>(),
                  *slot = args.token_slot.as<int32_t>(), *row_token = args.row_token.as<int32_t>();
    const R* probs = args.probs.as<R>();
    const auto tell = [&](int64_t p, int64_t row, int32_t source, R prob) {
      require_room(args.source_row, row);
      for (int64_t c = 0; c < tokens.copies(); ++c) {
        const int rank = static_cast<int>(p * tokens.copies() + c);
        call.windows.of<int32_t>(rank, args.source_row)[row] = source;
        call.windows.of<R>(rank, args.row_probs)[row] = prob;
      }
    };
    for (int64_t t = 0; t < T; ++t) {
      int64_t s = 0;
      while (s < k) {
        const int64_t p = idx[t * k + s] / El;
        int64_t listed = 0;
        int32_t list[kMaxExperts];
        for (; s < k && idx[t * k + s] / El == p; ++s) {  // slots are by ascending expert
          if (token_row[t * k + s] < 0) continue;
          const int64_t e = idx[t * k + s], row = row_base[e] + token_row[t * k + s] - offsets[e];
          tell(p, row, static_cast<int32_t>(first[p] + slot[t * P + p]), probs[t * k + s]);
          list[listed++] = static_cast<int32_t>(row);
        }
        if (listed == 0) continue;
        std::fill(list + listed, list + K, -1);
        for (int64_t c = 0; c < tokens.copies(); ++c)
          std::copy_n(list, K,
                      call.windows.of<int32_t>(static_cast<int>(p * tokens.copies() + c), args.token_rows) +
                          (first[p] + slot[t * P + p]) * K);
      }
    }
    for (int64_t e = 0; e < E; ++e)
      for (int64_t r = offsets[e]; r < offsets[e + 1]; ++r)
        if (row_token[r] < 0) tell(e / El, row_base[e] + r - offsets[e], -1, R(0));
  }
};

template <class C>
struct PushGradients {
  static void run(const Invocation& call) {
    const signature::push_rows::BackwardInput<Arg> args(call.args);
    const GroupTokens tokens(call, args.all_tokens, args.coords);
    push_tokens<C>(call, tokens, First(tokens), args.x, args.token_slot, args.rows);
  }
};

// f(source, i, received row) for all tokens this rank got.
template <class F>
void for_each_received(const Invocation& call, const GroupTokens& tokens, F&& f) {
  int64_t begin = 0;
  for (int64_t source = 0; source < tokens.ranks(); ++source) {
    const int64_t count = tokens.count(source, tokens.own_expert_rank());
    call.pool->for_each_tile(base::ceil_div(count, kTileRows), [&](int64_t tile) {
      for (int64_t i = tile * kTileRows; i < std::min(count, (tile + 1) * kTileRows); ++i)
        f(source, i, begin + i);
    });
    begin += count;
  }
}

template <class C>
void push_row_sums(const Invocation& call, const GroupTokens& tokens, const Arg& rows, const Arg& token_rows,
                   const Arg& sums) {
  const int64_t width = rows.dim(1), K = token_rows.dim(1);
  const C* from = rows.as<C>();
  for_each_received(call, tokens, [&](int64_t source, int64_t i, int64_t received) {
    const int64_t to = tokens.returned_row(source, i);
    require_room(sums, to);
    C* out = call.windows.of<C>(static_cast<int>(source), sums) + to * width;
    for (int64_t column = 0; column < width; column += kChunk)
      dispatch::sum_rows(from, token_rows.as<int32_t>() + received * K, K, width, column,
                         std::min(kChunk, width - column), out + column);
  });
}

template <class C>
struct PushSums {
  static void run(const Invocation& call) {
    const signature::push_sums::Forward<Arg> args(call.args);
    push_row_sums<C>(call, GroupTokens(call, args.all_tokens, args.coords), args.rows, args.token_rows,
                     args.sums);
  }
};

template <class C, class R>
struct PushGradientSums {
  static void run(const Invocation& call) {
    const signature::push_sums::BackwardInput<Arg> args(call.args);
    const GroupTokens tokens(call, args.all_tokens, args.coords);
    push_row_sums<C>(call, tokens, args.rows, args.token_rows, args.sums);
    const int64_t K = args.token_rows.dim(1);
    for_each_received(call, tokens, [&](int64_t source, int64_t i, int64_t received) {
      const int32_t* list = args.token_rows.as<int32_t>() + received * K;
      R* out =
          call.windows.of<R>(static_cast<int>(source), args.prob_sums) + tokens.returned_row(source, i) * K;
      for (int64_t j = 0; j < K; ++j) out[j] = list[j] < 0 ? R(0) : args.row_probs.as<R>()[list[j]];
    });
  }
};

constexpr Binding kTable[] = {
    pair_row<signature::push_rows::Forward, PushRows>([](const auto& a) {
      return TypePair{a.x.dtype, a.probs.dtype};
    }),
    row<signature::push_rows::BackwardInput, PushGradients>([](const auto& a) { return a.x.dtype; }),
    row<signature::push_sums::Forward, PushSums>([](const auto& a) { return a.rows.dtype; }),
    pair_row<signature::push_sums::BackwardInput, PushGradientSums>([](const auto& a) {
      return TypePair{a.rows.dtype, a.row_probs.dtype};
    }),
};

}  // namespace

std::span<const Binding> push_bindings() { return kTable; }

}  // namespace pleat::kernels
