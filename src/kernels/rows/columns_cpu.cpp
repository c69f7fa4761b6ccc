// Columns cut out of rows and put beside each other: columns, split_heads and merge_heads.
//
// All of them copy runs of bytes between two row lengths, so the element type only decides sizes.
#include <array>
#include <cstring>

#include "kernels/math/require.h"
#include "kernels/math/tiles.h"
#include "kernels/rows/rows.h"

namespace pleat::kernels {
namespace {

// Columns from `begin` on of rows of `width`, both in bytes.
template <class Byte>
struct Columns {
  Byte* rows;
  int64_t width, begin;
  Byte* at(int64_t row) const { return rows + row * width + begin; }
};

void copy_columns(Columns<const std::byte> from, Columns<std::byte> to, int64_t count, int64_t row) {
  if (count > 0) std::memcpy(to.at(row), from.at(row), static_cast<size_t>(count));
}

const std::byte* bytes_of(const Arg& arg) { return static_cast<const std::byte*>(arg.data); }
std::byte* target_of(const Arg& arg) { return static_cast<std::byte*>(arg.data); }

void run_columns(const Invocation& call) {
  const signature::columns::Forward args(call.args);
  const int64_t rows = args.x.dim(0), item = tensor::size_of(args.x.dtype);
  const int64_t count = args.y.dim(1) * item;
  const Columns<const std::byte> from{bytes_of(args.x), args.x.dim(1) * item, call.integer("begin") * item};
  const Columns<std::byte> to{target_of(args.y), count, 0};
  const Tiling tiling = row_tiling(rows, args.y.dim(1));
  call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
    for (int64_t t = tiling.begin(tile_idx); t < tiling.end(tile_idx); ++t) copy_columns(from, to, count, t);
  });
}

void run_join(const Invocation& call) {
  const signature::columns::BackwardInput args(call.args);
  const int64_t rows = args.y.dim(0), item = tensor::size_of(args.y.dtype);
  const int64_t a = args.a.dim(1) * item, b = args.b.dim(1) * item;
  const Tiling tiling = row_tiling(rows, args.y.dim(1));
  call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
    for (int64_t t = tiling.begin(tile_idx); t < tiling.end(tile_idx); ++t) {
      copy_columns({bytes_of(args.a), a, 0}, {target_of(args.y), a + b, 0}, a, t);
      copy_columns({bytes_of(args.b), b, 0}, {target_of(args.y), a + b, a}, b, t);
    }
  });
}

struct Heads {
  std::array<int64_t, 3> widths;
  int64_t parts, whole;
};

Heads heads_of(const Invocation& call) {
  Heads h{{call.integer("a"), call.integer("b"), call.integer("c")}, call.integer("parts"), 0};
  h.whole = h.widths[0] + h.widths[1] + h.widths[2];
  return h;
}

// Between rows of `whole` columns and n blocks of rows of whole / n columns, in either direction.
template <bool kSplit>
void run_heads(const Invocation& call) {
  const signature::merge_heads::BackwardInput args(call.args);
  const Heads h = heads_of(call);
  const Arg &joined = call[kSplit ? 0 : 1], &cut = call[kSplit ? 1 : 0];
  const int64_t rows = joined.dim(0), item = tensor::size_of(joined.dtype);
  const int64_t whole = h.whole * item, narrow = whole / h.parts;
  const Tiling tiling = row_tiling(rows, h.whole);
  call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
    for (int64_t part = 0; part < h.parts; ++part)
      for (int64_t t = tiling.begin(tile_idx); t < tiling.end(tile_idx); ++t) {
        int64_t joined_begin = 0, cut_begin = part * rows * narrow;
        for (const int64_t columns : h.widths) {
          const int64_t width = columns * item, count = width / h.parts;
          const int64_t at = joined_begin + part * count;
          if constexpr (kSplit)
            copy_columns({bytes_of(joined), whole, at}, {target_of(cut), narrow, cut_begin}, count, t);
          else
            copy_columns({bytes_of(cut), narrow, cut_begin}, {target_of(joined), whole, at}, count, t);
          joined_begin += width;
          cut_begin += count;
        }
      }
  });
}

void require_heads(std::string_view kernel, const Invocation& call, std::string_view joined_name,
                   const Arg& joined, std::string_view cut_name, const Arg& cut) {
  const Heads h = heads_of(call);
  if (h.parts < 1) base::fail("[{}] attribute 'parts' is {}, needed 1 or more", kernel, h.parts);
  constexpr std::string_view names[] = {"a", "b", "c"};
  for (size_t i = 0; i < 3; ++i)
    if (h.widths[i] < 0 || h.widths[i] % h.parts != 0)
      base::fail("[{}] attribute '{}' is {}, needed a multiple of the {} parts", kernel, names[i],
                 h.widths[i], h.parts);
  require_rank(kernel, joined_name, joined, 2);
  const int64_t rows = joined.dim(0), narrow = h.whole / h.parts;
  require_shape(kernel, joined_name, joined, {rows, h.whole});
  if (cut.shape.size() == 2)
    require_shape(kernel, cut_name, cut, {h.parts * rows, narrow});
  else
    require_shape(kernel, cut_name, cut, {h.parts, rows, narrow});
  require_dtype(kernel, cut_name, cut, joined.dtype);
}

}  // namespace

Kernel resolve_columns_forward(const Invocation& call) {
  const signature::columns::Forward args(call.args);
  require_rank(args.x, 2);
  require_rank(args.y, 2);
  require_shape(args.y, {args.x.dim(0), args.y.dim(1)});
  require_type(args.y, args.x.dtype);
  const int64_t begin = call.integer("begin"), end = begin + args.y.dim(1);
  if (begin < 0 || end > args.x.dim(1))
    base::fail("[columns] columns {} to {} are outside the {} of 'x'", begin, end, args.x.dim(1));
  return run_columns;
}

Kernel resolve_columns_backward_input(const Invocation& call) {
  const signature::columns::BackwardInput args(call.args);
  require_rank(args.a, 2);
  require_rank(args.b, 2);
  require_shape(args.b, {args.a.dim(0), args.b.dim(1)});
  require_shape(args.y, {args.a.dim(0), args.a.dim(1) + args.b.dim(1)});
  require_type(args.b, args.a.dtype);
  require_type(args.y, args.a.dtype);
  return run_join;
}

Kernel resolve_split_heads(const Invocation& call) {
  const signature::split_heads::BackwardInput args(call.args);
  require_heads("split_heads", call, "x", args.x, "y", args.y);
  return run_heads<true>;
}

Kernel resolve_merge_heads(const Invocation& call) {
  const signature::merge_heads::BackwardInput args(call.args);
  require_heads("merge_heads", call, "y", args.y, "x", args.x);
  return run_heads<false>;
}

}  // namespace pleat::kernels
