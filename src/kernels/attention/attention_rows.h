// Which rows see which, and how rows are cut into blocks; shared by both directions (see attention.h, Bits).
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/context_attention.h"

namespace pleat::kernels::attention {

// Rows [row, row + count) of the microbatch lie at rows from `own` on.
struct RowRun {
  int64_t row = 0, own = 0, count = 0;

  int64_t end() const { return row + count; }
};
// Runs are kept on the stack; rows in more of them are taken in turns.
constexpr int64_t kMaxRuns = 128;

// The runs of rows.row from `next` on, as many as fit; returns how many and moves `next` behind them.
inline int64_t take_runs(const ContextRows& rows, int64_t& next, RowRun (&runs)[kMaxRuns]) {
  int64_t num = 0;
  for (; next < rows.count && num < kMaxRuns; ++num) {
    RowRun& run = runs[num] = {rows.row[next], next, 0};
    for (; next < rows.count && rows.row[next] == run.end(); ++next) ++run.count;
  }
  return num;
}

// The first row that row i sees. Non-decreasing in i.
inline int64_t first_visible(const AttentionShape& shape, const int32_t* doc_start, int64_t i) {
  const int64_t start = doc_start[i];
  return shape.window > 0 ? std::max(start, i - shape.window + 1) : start;
}

// The last row at or before i that starts a segment: nothing from it on sees anything before it.
inline int64_t segment_start(const int32_t* doc_start, int64_t i) {
  while (doc_start[i] != i) i = doc_start[i];
  return i;
}

// Calls body(segment, first, end) for each block whose first row lies in [span * size, (span + 1) * size):
// blocks are `size` rows counted from the start of their segment, the last one of a segment is shorter. Over
// all spans, every row lies in exactly one block.
template <class Body>
inline void for_each_block(const AttentionShape& shape, const int32_t* doc_start, int64_t size, int64_t span,
                           const Body& body) {
  const int64_t span_end = std::min(shape.rows, (span + 1) * size);
  int64_t i = span * size;
  int64_t segment = segment_start(doc_start, i);
  i = segment + (i - segment + size - 1) / size * size;
  // Up to the first block start: rows of a block that an earlier span owns, and perhaps starts of new
  // segments.
  for (int64_t j = span * size; j < std::min(i, span_end); ++j)
    if (doc_start[j] == j) {
      i = j;
      break;
    }
  if (i < span_end && doc_start[i] == i) segment = i;
  while (i < span_end) {
    int64_t end = i + 1;
    while (end < std::min(shape.rows, i + size) && doc_start[end] != end) ++end;
    body(segment, i, end);
    // A full block may be followed by the next one of its segment, by a new segment, or by the end.
    i = end;
    if (i < shape.rows && doc_start[i] == i) segment = i;
  }
}

// The same for queries in any order: calls body(segment, first, end) for blocks [first, end) of query rows
// whose first lies in [span * size, (span + 1) * size). Rows of a block follow one another in the microbatch
// and lie inside one block of for_each_block, so a query meets the same blocks of keys wherever it is
// computed.
template <class Body>
inline void for_each_query_block(const ContextRows& queries, const int32_t* doc_start, int64_t size,
                                 int64_t span, const Body& body) {
  const int32_t* row = queries.row;
  const int64_t span_end = std::min(queries.count, (span + 1) * size);
  int64_t segment = -1;
  // Moves `segment` along with i; whether a block starts there.
  const auto starts = [&](int64_t i) {
    const bool follows = i > 0 && row[i] == row[i - 1] + 1;
    if (doc_start[row[i]] == row[i])
      segment = row[i];
    else if (!follows || segment < 0)
      segment = segment_start(doc_start, row[i]);
    return !follows || (row[i] - segment) % size == 0;
  };
  int64_t i = span * size;
  while (i < span_end && !starts(i)) ++i;
  while (i < span_end) {
    const int64_t first = i, owner = segment;
    for (++i; i < queries.count && !starts(i);) ++i;
    body(owner, first, i);
  }
}

inline int64_t num_spans(const AttentionShape& shape, int64_t size) { return (shape.rows + size - 1) / size; }

inline void check_doc_start(const AttentionShape& shape, const int32_t* doc_start) {
  int32_t previous = 0;
  for (int64_t i = 0; i < shape.rows; ++i) {
    PLEAT_CHECK(doc_start[i] >= previous && doc_start[i] <= i,
                "doc_start[{}] is {}, needed a value from {} (the row before) to {}", i, doc_start[i],
                previous, i);
    previous = doc_start[i];
  }
}

inline void check_rows(const AttentionShape& shape, const char* name, const ContextRows& rows) {
  for (int64_t i = 0; i < rows.count; ++i)
    PLEAT_CHECK(rows.row[i] >= 0 && rows.row[i] < shape.rows, "{}[{}] is {}, needed 0 to {}", name, i,
                rows.row[i], shape.rows - 1);
}

}  // namespace pleat::kernels::attention
