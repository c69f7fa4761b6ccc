// Tokens as rows of the table.
#pragma once

#include "kernels/cuda/types.cuh"
#include "kernels/rows/gather.cuh"

namespace pleat::kernels::cuda {

// Row of the table that holds a token. Tokens in no vocabulary cannot throw here: forward gives NaN.
struct TokenRows {
  const int32_t* tokens;
  const int64_t* place;  // the rank's number in the group, or null
  int64_t num_tokens, table_rows;
  int64_t padding = -1;  // the token whose row gets no gradient
  __device__ int64_t rows() const { return num_tokens; }
  __device__ int64_t first() const { return place ? *place * table_rows : 0; }  // the token of row 0
  __device__ int64_t of(int64_t t) const {
    const int64_t row = tokens[t] - first();
    if (row >= 0 && row < table_rows) return row;
    return place && tokens[t] >= 0 ? kZeroRow : kBadRow;
  }
  // What tokens are sorted by: those without a row come behind all others.
  __device__ int key(int64_t t) const {
    const int64_t row = of(t);
    return static_cast<int>(row >= 0 && tokens[t] != padding ? row : table_rows);
  }
  int key_bits() const {  // table_rows is a key itself
    int bits = 1;
    while ((table_rows >> bits) != 0) ++bits;
    return bits;
  }
};

// The tokens by (key, position).
struct SortedTokens {
  int32_t *keys, *order;
  int num_tokens, table_rows;
  __device__ int key(int i) const { return i < 0 || i >= num_tokens ? -1 : keys[i]; }
};

// The gradient's rows as bytes, for zeros.
struct TableBytes {
  std::byte* data;
  int64_t rows, row_bytes;
  bool wide;  // rows are whole 16 bytes, aligned to them; else whole 2 bytes

  // By `threads` threads, of which the caller is number `thread`.
  __device__ void zero_row(int64_t row, int thread, int threads) const {
    std::byte* to = data + row * row_bytes;
    if (wide)
      for (int64_t j = thread * 16; j < row_bytes; j += threads * 16)
        __stcs(reinterpret_cast<uint4*>(to + j), make_uint4(0, 0, 0, 0));
    else
      for (int64_t j = thread * 2; j < row_bytes; j += threads * 2) *reinterpret_cast<uint16_t*>(to + j) = 0;
  }
};

}  // namespace pleat::kernels::cuda
