// How loops over rows or elements are cut into tiles: by shape alone, never by the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

namespace pleat::kernels {

// [0, count) in pieces of `size`; the last one may be shorter.
struct Tiling {
  int64_t count = 0, size = 1;
  int64_t num_tiles() const { return (count + size - 1) / size; }
  int64_t begin(int64_t tile_idx) const { return tile_idx * size; }
  int64_t end(int64_t tile_idx) const { return std::min(count, begin(tile_idx) + size); }
};

// About 16 Ki elements a tile: some microseconds of work, well inside the second-level cache.
inline Tiling row_tiling(int64_t num_rows, int64_t row_width) {
  return {num_rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, row_width))};
}
inline Tiling element_tiling(int64_t num_elements) { return {num_elements, 32768}; }
// Columns of a sum over rows: the order of the sum is then the order of the rows.
constexpr int64_t kColumnTile = 64;
inline Tiling column_tiling(int64_t num_columns) { return {num_columns, kColumnTile}; }

}  // namespace pleat::kernels
