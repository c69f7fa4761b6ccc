// Rows to experts and back: permute and combine, each the transpose of the other.
#include <algorithm>

#include "kernels/dispatch/dispatch.h"
#include "kernels/dispatch/dispatch_rows.h"
#include "kernels/router/type_pair.h"

namespace pleat::kernels {
namespace {

using namespace dispatch;

template <class C>
void copy_rows(const C* from, const int32_t* row_token, int64_t begin, int64_t end, int64_t width, C* rows) {
  for (int64_t r = begin; r < end; ++r) {
    if (row_token[r] < 0) {
      std::fill_n(rows + r * width, width, C(0));
    } else {
      std::copy_n(from + row_token[r] * width, width, rows + r * width);
    }
  }
}

template <class C, class R>
struct PermuteForward {
  static void run(const Invocation& call) {
    const C* x = call[0].as<C>();
    const R* probs = call[1].as<R>();
    const int32_t *offsets = call[2].as<int32_t>(), *row_token = call[3].as<int32_t>(),
                  *row_slot = call[4].as<int32_t>();
    C* rows = call[6].as<C>();
    R* row_probs = call[7].as<R>();
    const int64_t width = call[0].dim(1), k = call[1].dim(1), num_rows = offsets[call[2].dim(0) - 1];
    call.pool->for_each_tile(base::ceil_div(num_rows, kTileRows), [&](int64_t tile) {
      const int64_t begin = tile * kTileRows, end = std::min(num_rows, begin + kTileRows);
      copy_rows(x, row_token, begin, end, width, rows);
      for (int64_t r = begin; r < end; ++r)
        row_probs[r] = row_token[r] < 0 ? R(0) : probs[row_token[r] * k + row_slot[r]];
    });
  }
};

template <class C, class R>
struct PermuteBackward {
  static void run(const Invocation& call) {
    const C* drows = call[0].as<C>();
    const R* drow_probs = call[1].as<R>();
    const int32_t* token_row = call[2].as<int32_t>();
    C* dx = call[3].as<C>();
    R* dprobs = call[4].as<R>();
    const bool add = call[3].into() == Into::Accumulate;
    const int64_t T = call[3].dim(0), width = call[3].dim(1), k = call[2].dim(1);
    call.pool->for_each_tile(base::ceil_div(T, kTileRows), [&](int64_t tile) {
      C sum[kChunk];
      for (int64_t t = tile * kTileRows; t < std::min(T, (tile + 1) * kTileRows); ++t) {
        const int32_t* row_of = token_row + t * k;
        for (int64_t c = 0; c < width; c += kChunk) {
          const int64_t n = std::min(kChunk, width - c);
          C* __restrict out = dx + t * width + c;
          if (add) {
            sum_rows(drows, row_of, k, width, c, n, sum);
            for (int64_t i = 0; i < n; ++i) out[i] += sum[i];
          } else {
            sum_rows(drows, row_of, k, width, c, n, out);
          }
        }
        for (int64_t s = 0; s < k; ++s) dprobs[t * k + s] = row_of[s] < 0 ? R(0) : drow_probs[row_of[s]];
      }
    });
  }
};

template <class C>
struct CombineForward {
  static void run(const Invocation& call) {
    const C *rows = call[0].as<C>(), *residual = call[2].as<C>(), *shared = call[3].as<C>();
    const int32_t* token_row = call[1].as<int32_t>();
    C* y = call[4].as<C>();
    const int64_t T = call[4].dim(0), width = call[4].dim(1), k = call[1].dim(1);
    call.pool->for_each_tile(base::ceil_div(T, kTileRows), [&](int64_t tile) {
      C sum[kChunk];
      for (int64_t t = tile * kTileRows; t < std::min(T, (tile + 1) * kTileRows); ++t)
        for (int64_t c = 0; c < width; c += kChunk) {
          const int64_t n = std::min(kChunk, width - c), at = t * width + c;
          sum_rows(rows, token_row + t * k, k, width, c, n, sum);
          if (shared)
            for (int64_t i = 0; i < n; ++i) sum[i] += shared[at + i];
          if (residual)
            for (int64_t i = 0; i < n; ++i) sum[i] += residual[at + i];
          std::copy_n(sum, n, y + at);
        }
    });
  }
};

template <class C>
struct CombineBackward {
  static void run(const Invocation& call) {
    const C* dy = call[0].as<C>();
    const int32_t *row_token = call[1].as<int32_t>(), *offsets = call[2].as<int32_t>();
    C* drows = call[4].as<C>();
    const int64_t width = call[0].dim(1), num_rows = offsets[call[2].dim(0) - 1];
    call.pool->for_each_tile(base::ceil_div(num_rows, kTileRows), [&](int64_t tile) {
      copy_rows(dy, row_token, tile * kTileRows, std::min(num_rows, (tile + 1) * kTileRows), width, drows);
    });
  }
};

}  // namespace

Kernel resolve_permute_forward(const Invocation& call) {
  constexpr std::string_view kName = "permute";
  check_rank(kName, "x", call[0], 2);
  check_rank(kName, "probs", call[1], 2);
  check_offsets(kName, call[2]);
  check_rank(kName, "rows", call[6], 2);
  const int64_t R = call[6].dim(0);
  require_shape(kName, "probs", call[1], {call[0].dim(0), call[1].dim(1)});
  require_dtype(kName, "row_token", call[3], tensor::Dtype::I32);
  require_shape(kName, "row_token", call[3], {R});
  require_dtype(kName, "row_slot", call[4], tensor::Dtype::I32);
  require_shape(kName, "row_slot", call[4], {R});
  require_dtype(kName, "token_row", call[5], tensor::Dtype::I32);
  require_shape(kName, "token_row", call[5], {call[0].dim(0), call[1].dim(1)});
  require_dtype(kName, "rows", call[6], call[0].dtype);
  require_shape(kName, "rows", call[6], {R, call[0].dim(1)});
  require_dtype(kName, "row_probs", call[7], call[1].dtype);
  require_shape(kName, "row_probs", call[7], {R});
  return select_pair<PermuteForward>(kName, call[0].dtype, call[1].dtype);
}

Kernel resolve_permute_backward_input(const Invocation& call) {
  constexpr std::string_view kName = "permute";
  check_rank(kName, "drows", call[0], 2);
  check_rank(kName, "token_row", call[2], 2);
  check_rank(kName, "dx", call[3], 2);
  const int64_t T = call[2].dim(0), k = call[2].dim(1);
  require_dtype(kName, "token_row", call[2], tensor::Dtype::I32);
  require_shape(kName, "drow_probs", call[1], {call[0].dim(0)});
  require_dtype(kName, "dx", call[3], call[0].dtype);
  require_shape(kName, "dx", call[3], {T, call[0].dim(1)});
  require_dtype(kName, "dprobs", call[4], call[1].dtype);
  require_shape(kName, "dprobs", call[4], {T, k});
  return select_pair<PermuteBackward>(kName, call[0].dtype, call[1].dtype);
}

Kernel resolve_combine_forward(const Invocation& call) {
  constexpr std::string_view kName = "combine";
  check_rank(kName, "rows", call[0], 2);
  check_rank(kName, "token_row", call[1], 2);
  const int64_t T = call[1].dim(0), h = call[0].dim(1);
  require_dtype(kName, "token_row", call[1], tensor::Dtype::I32);
  require_shape(kName, "residual", call[2], {T, h});
  require_dtype(kName, "residual", call[2], call[0].dtype);
  require_shape(kName, "shared", call[3], {T, h});
  require_dtype(kName, "shared", call[3], call[0].dtype);
  require_shape(kName, "y", call[4], {T, h});
  require_dtype(kName, "y", call[4], call[0].dtype);
  return select_float<CombineForward>(call[0].dtype);
}

Kernel resolve_combine_backward_input(const Invocation& call) {
  constexpr std::string_view kName = "combine";
  check_rank(kName, "dy", call[0], 2);
  check_rank(kName, "row_token", call[1], 1);
  check_offsets(kName, call[2]);
  require_dtype(kName, "row_token", call[1], tensor::Dtype::I32);
  check_rank(kName, "token_row", call[3], 2);
  require_dtype(kName, "token_row", call[3], tensor::Dtype::I32);
  require_shape(kName, "token_row", call[3], {call[0].dim(0), call[3].dim(1)});
  require_dtype(kName, "drows", call[4], call[0].dtype);
  require_shape(kName, "drows", call[4], {call[1].dim(0), call[0].dim(1)});
  return select_float<CombineBackward>(call[0].dtype);
}

}  // namespace pleat::kernels
