// Rows of logits from memory through registers, a block each: for what needs a row once.
//
// What keeps the memory busy is threads, not loads ahead: a multiprocessor is full of them, and each has a
// chunk on the way nearly all the time.
#pragma once

#include <type_traits>

#include "kernels/cross_entropy/row_sum.cuh"

namespace pleat::kernels::cuda {

// A row of any width at any address: `head` lone elements up to the first 16-byte boundary, whole units, and
// `tail` lone elements.
template <class T>
struct RowUnits {
  const T* row;
  int columns, head, units, tail;

  __device__ RowUnits(const T* row, int columns) : row(row), columns(columns) {
    const auto address = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(row));
    head = min(columns, static_cast<int>(-address % 16 / sizeof(T)));
    units = (columns - head) / kWide<T>;
    tail = columns - head - units * kWide<T>;
  }
  __device__ const T* unit(int u) const { return row + head + u * kWide<T>; }
};

// What this thread finds in the row, a block's threads side by side. Calls rises(place) where the largest
// logit so far grows, in ascending order of columns: the number of the chunk's first unit, or ~column of a
// lone element.
template <int kThreads, class T, class F>
__device__ inline OnlineSum<T> look_at_row(const RowUnits<T>& row, F&& rises) {
  const int thread = static_cast<int>(threadIdx.x);
  OnlineSum<T> sum;
  const auto take = [&](const auto& what, int place) {
    const float before = sum.top;
    sum.take(what);
    if (sum.top > before) rises(place);
  };
  if (thread < row.head) take(to_float(row.row[thread]), ~thread);
  int unit = thread;
  for_chunks<kThreads>(row.unit(thread), row.units - thread, [&](const T* from, int left) {
    Wide<T> chunk[kChunk];
    load_chunk<kThreads>(from, left, chunk);
    take(chunk, unit);
    unit += kChunk * kThreads;
  });
  const int last = row.columns - row.tail + thread;
  if (thread < row.tail) take(to_float(row.row[last]), ~last);
  return sum;
}

// One part per warp of what a block's threads found, in shared memory; all have arrived. Once per kernel.
template <int kThreads, class T>
__device__ inline const RowPart* block_parts(const OnlineSum<T>& mine) {
  __shared__ RowPart parts[kThreads / 32];
  const RowPart part = warp_part(mine);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = part;
  __syncthreads();
  return parts;
}

// Threads that fill a multiprocessor, whatever the size of a block.
constexpr int kStreamThreads = 2048;

// Calls f with the number of threads that reads a row, as a type's value: the fewer rows there are, the more
// threads each gets. The bounds are two and four blocks on each of a Hopper's 132 multiprocessors; they are
// fixed, so that the order of sums follows from the shape.
template <class F>
void with_stream_threads(int64_t rows, F&& f) {
  if (rows <= 2 * 132) return f(std::integral_constant<int, 1024>{});
  if (rows <= 4 * 132) return f(std::integral_constant<int, 512>{});
  f(std::integral_constant<int, 256>{});
}

}  // namespace pleat::kernels::cuda
