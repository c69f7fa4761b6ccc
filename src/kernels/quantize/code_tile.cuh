// A tile of 128 by 128 codes that leaves column by column: what turn_codes and the turned codes of a weight share. 256
// threads; thread (warp q, lane l) has columns 4 l to 4 l + 3 of rows 16 q to 16 q + 15.
#pragma once

#include "kernels/quantize/code_block.cuh"

namespace pleat::kernels::cuda {

constexpr int kTileThreads = 256, kTileRows = 16;  // rows of a thread

struct CodeTile {
  uint4 chunks[kBlock * 8];  // column after column, 16 rows each; places turned so that banks differ

  __device__ static int place(int column, int chunk) { return column * 8 + (chunk ^ column / 4 % 8); }
  // The 16 rows of this thread in one of its columns, four to a word.
  __device__ void put(int of_four, const uint32_t (&words)[4]) {
    const int column = static_cast<int>(threadIdx.x) % 32 * 4 + of_four,
              chunk = static_cast<int>(threadIdx.x) / 32;
    chunks[place(column, chunk)] = make_uint4(words[0], words[1], words[2], words[3]);
  }
  // Behind a barrier: `columns` columns of `rows` codes each to memory, `stride` bytes from column to column.
  __device__ void store(uint8_t* to, int64_t stride, int columns, int rows, bool wide) const {
    for (int i = static_cast<int>(threadIdx.x); i < columns * 8; i += kTileThreads) {
      const int column = i / 8, first = i % 8 * 16;
      const uint4 chunk = chunks[place(column, i % 8)];
      uint8_t* const at = to + column * stride + first;
      if (wide && first + 16 <= rows) {
        *reinterpret_cast<uint4*>(at) = chunk;
      } else {
        const uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
        for (int b = 0; b < 16; ++b)
          if (first + b < rows) at[b] = static_cast<uint8_t>(words[b / 4] >> (b % 4 * 8));
      }
    }
  }
};

}  // namespace pleat::kernels::cuda
