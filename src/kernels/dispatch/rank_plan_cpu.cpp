// Row plans of a rank's own experts when the tokens of several ranks meet there: gathered (gather_plan) or
// exchanged (receive_plan). Both describe the same rows in the same order.
#include "kernels/dispatch/dispatch.h"
#include "kernels/dispatch/dispatch_rows.h"
#include "kernels/router/router.h"

namespace pleat::kernels {
namespace {

using namespace dispatch;

// The first of this rank's experts.
int64_t first_expert(const Invocation& call, const Arg& coords) {
  const int64_t place = coords.as<int64_t>()[static_cast<size_t>(program::Group::Dispatch)];
  return place / call.integer("copies") * call.integer("experts_per_rank");
}

void gather_plan(const Invocation& call) {
  const signature::gather_plan::Forward<Arg> args(call.args);
  const int32_t *idx = args.idx.as<int32_t>(), *kept = args.kept.as<int32_t>();
  int32_t *offsets = args.offsets.as<int32_t>(), *row_token = args.row_token.as<int32_t>(),
          *row_slot = args.row_slot.as<int32_t>(), *token_row = args.token_row.as<int32_t>();
  const int64_t num_tokens = args.idx.dim(0), k = args.idx.dim(1), budget = args.row_token.dim(0);
  const int64_t El = call.integer("experts_per_rank"), ranks = call.integer("ranks"),
                capacity = call.integer("capacity");
  const int64_t E = ranks / call.integer("copies") * El, begin = first_expert(call, args.coords);
  const bool pad = call.integer("pad") != 0;
  if (begin < 0 || begin + El > E)
    base::fail_with(base::ExitCode::Internal, "[gather_plan] this rank's experts begin at {} of {}", begin,
                    E);
  const int64_t choices_per_source = num_tokens / ranks * k;
  // The expert of a kept choice, counted from this rank's first, or -1.
  const auto local = [&](int64_t i) -> int64_t {
    const int64_t e = idx[i] - begin;
    return kept[i] >= 0 && e >= 0 && e < El ? e : -1;
  };

  int64_t next[kMaxExperts];  // of an expert: rows counted, then the row of its next choice
  std::fill_n(next, El, int64_t{0});
  int64_t num_rows = pad ? ranks * El * capacity : 0;
  for (int64_t source = 0, i = 0; source < ranks; ++source) {
    if (pad) std::fill_n(next, El, int64_t{0});
    for (const int64_t end = i + choices_per_source; i < end; ++i) {
      if (idx[i] < 0 || idx[i] >= E)
        base::fail_with(base::ExitCode::Internal, "[gather_plan] choice {} is expert {} of {}", i, idx[i], E);
      const int64_t e = local(i);
      if (e < 0) continue;
      if (++next[e] > capacity && pad)
        base::fail_with(base::ExitCode::Internal,
                        "[gather_plan] source {} kept more than {} choices of expert {}", source, capacity,
                        begin + e);
      if (!pad) ++num_rows;
    }
  }
  check_budget("gather_plan", num_rows, budget);

  int64_t row = 0;
  for (int64_t e = 0; e < El; ++e) {
    const int64_t count = pad ? ranks * capacity : next[e];
    offsets[e] = static_cast<int32_t>(row);
    next[e] = row;
    row += count;
  }
  offsets[El] = static_cast<int32_t>(row);
  for (int64_t source = 0, i = 0; source < ranks; ++source) {
    for (const int64_t end = i + choices_per_source; i < end; ++i) {
      const int64_t e = local(i);
      if (e < 0) {
        token_row[i] = -1;
        continue;
      }
      const int64_t r = next[e]++;
      row_token[r] = static_cast<int32_t>(i / k);
      row_slot[r] = static_cast<int32_t>(i % k);
      token_row[i] = static_cast<int32_t>(r);
    }
    if (pad)
      for (int64_t e = 0; e < El; ++e) {
        const int64_t end = offsets[e] + (source + 1) * capacity;
        fill_rows(row_token, row_slot, next[e], end);
        next[e] = end;
      }
  }
  fill_rows(row_token, row_slot, row, budget);
}

void receive_plan(const Invocation& call) {
  const signature::receive_plan::Forward<Arg> args(call.args);
  const int32_t* all_offsets = args.all_offsets.as<int32_t>();
  int32_t *offsets = args.offsets.as<int32_t>(), *source_row = args.source_row.as<int32_t>(),
          *sorted_row = args.sorted_row.as<int32_t>();
  const int64_t ranks = args.all_offsets.dim(0), stride = args.all_offsets.dim(1),
                budget = args.source_row.dim(0);
  const int64_t El = call.integer("experts_per_rank"), begin = first_expert(call, args.coords);
  if (begin < 0 || begin + El >= stride)
    base::fail_with(base::ExitCode::Internal, "[receive_plan] this rank's experts begin at {} of {}", begin,
                    stride - 1);
  int64_t num_rows = 0;
  for (int64_t source = 0; source < ranks; ++source) {
    const int32_t* from = all_offsets + source * stride + begin;
    for (int64_t e = 0; e < El; ++e)
      if (from[0] < 0 || from[e + 1] < from[e])
        base::fail_with(base::ExitCode::Internal, "[receive_plan] offsets of rank {} are not ascending",
                        source);
    num_rows += from[El] - from[0];
  }
  check_budget("receive_plan", num_rows, budget);

  int64_t row = 0;
  for (int64_t e = 0; e < El; ++e) {
    offsets[e] = static_cast<int32_t>(row);
    int64_t start = 0;  // of the source's rows among the received
    for (int64_t source = 0; source < ranks; ++source) {
      const int32_t* from = all_offsets + source * stride + begin;
      for (int64_t at = start + from[e] - from[0]; at < start + from[e + 1] - from[0]; ++at, ++row) {
        source_row[row] = static_cast<int32_t>(at);
        sorted_row[at] = static_cast<int32_t>(row);
      }
      start += from[El] - from[0];
    }
  }
  offsets[El] = static_cast<int32_t>(row);
  fill_rows(source_row, sorted_row, row, budget);
}

void padded_plan(const Invocation& call) {
  const signature::padded_plan::Forward<Arg> args(call.args);
  const int32_t* all = args.all_offsets.as<int32_t>();
  const int64_t ranks = args.all_offsets.dim(0), stride = args.all_offsets.dim(1),
                budget = args.source_row.dim(0);
  const int64_t El = call.integer("experts_per_rank"), copies = call.integer("copies"),
                part = call.integer("part");
  const int64_t me = args.coords.as<int64_t>()[static_cast<size_t>(program::Group::Dispatch)];
  if (me < 0 || me >= ranks)
    base::fail_with(base::ExitCode::Internal, "[padded_plan] this rank is {} of {}", me, ranks);
  int32_t *offsets = args.offsets.as<int32_t>(), *source_row = args.source_row.as<int32_t>(),
          *sorted_row = args.sorted_row.as<int32_t>(), *send_row = args.send_row.as<int32_t>(),
          *returned_row = args.returned_row.as<int32_t>();
  // Rows of `source` for the experts of rank j begin at begin(source, j) of its plan.
  const auto begin = [&](int64_t source, int64_t rank) { return all[source * stride + rank / copies * El]; };
  const auto count = [&](int64_t source, int64_t rank) {
    return all[source * stride + (rank / copies + 1) * El] - begin(source, rank);
  };
  std::fill_n(source_row, budget, -1);
  for (const Arg* list : {&args.sorted_row, &args.send_row, &args.returned_row})
    std::fill_n(list->as<int32_t>(), list->size(), -1);
  int64_t num_rows = 0;
  for (int64_t source = 0; source < ranks; ++source) {
    num_rows += count(source, me);
    if (count(source, me) > part)
      base::fail("[padded_plan] rank {} sends {} rows, a part has {}", source, count(source, me), part);
  }
  check_budget("padded_plan", num_rows, budget);
  int64_t row = 0;
  for (int64_t e = 0; e < El; ++e) {
    offsets[e] = static_cast<int32_t>(row);
    for (int64_t source = 0; source < ranks; ++source) {
      const int32_t* from = all + source * stride + me / copies * El;
      for (int64_t i = from[e] - from[0]; i < from[e + 1] - from[0]; ++i, ++row) {
        source_row[row] = static_cast<int32_t>(source * part + i);
        sorted_row[source * part + i] = static_cast<int32_t>(row);
      }
    }
  }
  offsets[El] = static_cast<int32_t>(row);
  int64_t returned = 0;
  for (int64_t rank = 0; rank < ranks; ++rank)
    for (int64_t i = 0; i < count(me, rank); ++i, ++returned) {
      send_row[rank * part + i] = static_cast<int32_t>(begin(me, rank) + i);
      returned_row[returned] = static_cast<int32_t>(rank * part + i);
    }
}

constexpr Binding kTable[] = {
    row<signature::padded_plan::Forward, padded_plan>(),
    row<signature::gather_plan::Forward, gather_plan>(),
    row<signature::receive_plan::Forward, receive_plan>(),
};

}  // namespace

std::span<const Binding> rank_plan_bindings() { return kTable; }

}  // namespace pleat::kernels
