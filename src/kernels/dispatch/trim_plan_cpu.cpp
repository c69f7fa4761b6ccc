// A plan of rows cut down to a budget, by all ranks of a dispatch group alike and before a row moves: every
// rank sees the counts of all, so each can tell what every other will do.
#include "kernels/dispatch/dispatch.h"
#include "kernels/dispatch/dispatch_rows.h"
#include "kernels/router/router.h"
#include "program/overflow.h"

namespace pleat::kernels {
namespace {

using namespace dispatch;

// What is left of counts[i * stride] when all together may have `budget`: each min(count, level), for the
// largest level that fits, and of what is then left over one more for the first that were cut.
class Level {
 public:
  template <class Count>
  Level(Count count, int64_t n, int64_t budget) {
    const auto total = [&](int64_t level) {
      int64_t sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += std::min(count(i), level);
      return sum;
    };
    int64_t high = 0;
    for (int64_t i = 0; i < n; ++i) high = std::max(high, count(i));
    while (level_ < high) {
      const int64_t middle = (level_ + high + 1) / 2;
      if (total(middle) <= budget)
        level_ = middle;
      else
        high = middle - 1;
    }
    left_ = budget - total(level_);
  }

  // To be asked in ascending order, once each.
  int64_t keep(int64_t count) {
    if (count <= level_) return count;
    return left_-- > 0 ? level_ + 1 : level_;
  }

 private:
  int64_t level_ = 0, left_ = 0;
};

// counts [n, E+1], of which the last column means nothing.
void trim_counts(int32_t* counts, int64_t n, int64_t E, int64_t first, int64_t El, int64_t budget) {
  const int64_t stride = E + 1;
  const auto of_expert = [&](int64_t e) {
    int64_t sum = 0;
    for (int64_t s = 0; s < n; ++s) sum += counts[s * stride + first + e];
    return sum;
  };
  Level experts(of_expert, El, budget);
  for (int64_t e = 0; e < El; ++e) {
    const int64_t count = of_expert(e), kept = experts.keep(count);
    if (kept == count) continue;
    Level sources([&](int64_t s) { return int64_t{counts[s * stride + first + e]}; }, n, kept);
    for (int64_t s = 0; s < n; ++s) {
      int32_t& c = counts[s * stride + first + e];
      c = static_cast<int32_t>(sources.keep(c));
    }
  }
}

template <class R>
struct Trim {
  static void run(const Invocation& call) {
    const signature::trim_plan::Forward<Arg> args(call.args);
    const R* probs = args.probs.as<R>();
    const int64_t* coords = args.coords.as<int64_t>();
    int32_t *all = args.all_offsets.as<int32_t>(), *offsets = args.offsets.as<int32_t>(),
            *row_token = args.row_token.as<int32_t>(), *row_slot = args.row_slot.as<int32_t>(),
            *token_row = args.token_row.as<int32_t>();
    const int64_t n = args.all_offsets.dim(0), E = args.offsets.dim(0) - 1, stride = E + 1,
                  k = args.token_row.dim(1);
    const int64_t budget = call.integer("budget"), El = call.integer("experts_per_rank"),
                  copies = call.integer("copies");
    const bool by_probability = call.integer("policy") == 0;
    const int64_t me = coords[static_cast<size_t>(program::Group::Dispatch)];
    PLEAT_CHECK(me >= 0 && me < n && std::equal(offsets, offsets + stride, all + me * stride),
                "[trim_plan] the plan of rank {} is not the one the group was told of", me);

    bool any = false;
    for (int64_t q = 0; q < n / copies; ++q) {
      int64_t rows = 0;
      for (int64_t s = 0; s < n; ++s) rows += all[s * stride + (q + 1) * El] - all[s * stride + q * El];
      any |= rows > budget;
      if (rows <= budget || q != me / copies || !args.overflow.present) continue;
      int64_t* overflow = args.overflow.as<int64_t>();
      *overflow = std::max(
          *overflow, program::encode_overflow(rows, coords[static_cast<size_t>(program::Group::World)]));
    }
    if (!any) return;

    for (int64_t s = 0; s < n; ++s)
      for (int64_t e = 0; e < E; ++e) all[s * stride + e] = all[s * stride + e + 1] - all[s * stride + e];
    for (int64_t q = 0; q < n / copies; ++q) {
      int64_t rows = 0;
      for (int64_t s = 0; s < n; ++s)
        for (int64_t e = q * El; e < (q + 1) * El; ++e) rows += all[s * stride + e];
      if (rows > budget) trim_counts(all, n, E, q * El, El, budget);
    }
    for (int64_t s = 0; s < n; ++s) {
      int32_t at = 0;
      for (int64_t e = 0; e <= E; ++e) {
        const int32_t count = e < E ? all[s * stride + e] : 0;
        all[s * stride + e] = at;
        at += count;
      }
    }

    // The cells of token_row hold the rows of one expert while some of them are chosen.
    const int32_t* kept_offsets = all + me * stride;
    const int64_t planned = offsets[E];
    int64_t to = 0;
    for (int64_t e = 0; e < E; ++e) {
      const int64_t begin = offsets[e], count = offsets[e + 1] - begin,
                    kept = kept_offsets[e + 1] - kept_offsets[e];
      for (int64_t i = 0; i < count; ++i) token_row[i] = static_cast<int32_t>(begin + i);
      if (kept < count && by_probability) {
        const auto key = [&](int32_t r) {
          const R p = probs[row_token[r] * k + row_slot[r]];
          return p == p ? p : -std::numeric_limits<R>::infinity();
        };
        std::nth_element(token_row, token_row + kept, token_row + count,
                         [&](int32_t a, int32_t b) { return key(a) != key(b) ? key(a) > key(b) : a < b; });
        std::sort(token_row, token_row + kept);
      }
      for (int64_t i = 0; i < kept; ++i, ++to) {
        row_token[to] = row_token[token_row[i]];
        row_slot[to] = row_slot[token_row[i]];
      }
    }
    std::copy_n(kept_offsets, stride, offsets);
    fill_rows(row_token, row_slot, to, planned);
    std::fill_n(token_row, args.token_row.size(), -1);
    for (int64_t r = 0; r < to; ++r) token_row[row_token[r] * k + row_slot[r]] = static_cast<int32_t>(r);
    *args.dropped.as<int64_t>() += planned - to;
  }
};

constexpr Binding kTable[] = {
    row<signature::trim_plan::Forward, Trim>([](const auto& a) { return a.probs.dtype; }),
};

}  // namespace

std::span<const Binding> trim_plan_bindings() { return kTable; }

}  // namespace pleat::kernels
