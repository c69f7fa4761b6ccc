// Rows through windows: the kernels of one of eight ranks, with the windows of all of them in its own memory. What they
// move is then bound by this GPU's memory, not by links. Bytes: every row read once and written once.
#include <algorithm>

#include "bench/case_shapes.h"

namespace pleat::bench {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

constexpr int64_t kRanks = 8;

// Where this rank's tokens go, and lists as if all ranks sent what this one does.
struct Sending {
  std::vector<double> token_offsets, token_slot, all_tokens, row_base, token_rows, source_row;
  int64_t sent = 0, received = 0, rows = 0, listed = 0;  // rows: of this rank's experts
  int64_t most_received = 0, most_rows = 0;              // of any rank

  Sending(const Model& m, const Routing& routing, int64_t T) {
    const int64_t El = m.experts / kRanks, k = m.top_k;
    listed = std::min(k, El);
    std::vector<std::vector<int64_t>> tokens(kRanks);
    token_slot.assign(static_cast<size_t>(T * kRanks), -1);
    for (int64_t t = 0; t < T; ++t)
      for (int64_t s = 0; s < k; ++s) {
        const auto p =
            static_cast<size_t>(routing.idx[static_cast<size_t>(t * k + s)]) / static_cast<size_t>(El);
        double& slot = token_slot[static_cast<size_t>(t * kRanks) + p];
        if (slot >= 0) continue;
        slot = static_cast<double>(tokens[p].size());
        tokens[p].push_back(t);
      }
    token_offsets = {0};
    for (const auto& list : tokens)
      token_offsets.push_back(token_offsets.back() + static_cast<double>(list.size()));
    sent = static_cast<int64_t>(token_offsets.back());
    for (int64_t r = 0; r < kRanks; ++r)
      all_tokens.insert(all_tokens.end(), token_offsets.begin(), token_offsets.end());
    // Rank 0's experts: the rows of each by source, then token.
    const auto count = [&](int64_t e) {
      return static_cast<int64_t>(routing.offsets[static_cast<size_t>(e) + 1] -
                                  routing.offsets[static_cast<size_t>(e)]);
    };
    row_base.assign(static_cast<size_t>(m.experts), 0);
    std::vector<int64_t> first(static_cast<size_t>(El));
    for (int64_t e = 0; e < m.experts; ++e) {
      if (e % El == 0) rows = 0;
      row_base[static_cast<size_t>(e)] = static_cast<double>(rows);
      rows += kRanks * count(e);
      most_rows = std::max(most_rows, rows);
    }
    rows = 0;
    for (int64_t e = 0; e < El; ++e) first[static_cast<size_t>(e)] = rows, rows += kRanks * count(e);
    received = kRanks * static_cast<int64_t>(tokens[0].size());
    for (const auto& list : tokens)
      most_received = std::max(most_received, kRanks * static_cast<int64_t>(list.size()));
    token_rows.assign(static_cast<size_t>(received * listed), -1);
    source_row.assign(static_cast<size_t>(rows), -1);
    for (int64_t source = 0; source < kRanks; ++source)
      for (size_t i = 0; i < tokens[0].size(); ++i) {
        const int64_t q = source * static_cast<int64_t>(tokens[0].size()) + static_cast<int64_t>(i);
        int64_t j = 0;
        for (int64_t s = 0; s < k; ++s) {
          const size_t choice = static_cast<size_t>(tokens[0][i] * k + s);
          const auto e = static_cast<int64_t>(routing.idx[choice]);
          if (e >= El) continue;
          const int64_t row =
              first[static_cast<size_t>(e)] + source * count(e) +
              static_cast<int64_t>(routing.token_row[choice] - routing.offsets[static_cast<size_t>(e)]);
          token_rows[static_cast<size_t>(q * listed + j++)] = static_cast<double>(row);
          source_row[static_cast<size_t>(row)] = static_cast<double>(q);
        }
      }
  }
};

void add_exchange(CaseList& all, const Model& m, int64_t T) {
  const Routing routing = routing_of(m, T, Load::Random);
  const Sending n(m, routing, T);
  const int64_t h = m.hidden, k = m.top_k, E = m.experts;
  const std::string base = std::string(m.name) + " EP8 " + std::to_string(T);
  const Argument coords = in(Dtype::I64, {program::kNumGroups}, {0}),
                 all_tokens = in(kI, {kRanks, kRanks + 1}, n.all_tokens),
                 slot = in(kI, {T, kRanks}, n.token_slot), met = in(Dtype::U8, {1}, {1}),
                 lists = in(kI, {n.received, n.listed}, n.token_rows), x = in(kB, {T, h}),
                 rows = in(kB, {n.rows, h}), idx = in(kI, {T, k}, routing.idx),
                 token_row = in(kI, {T, k}, routing.token_row),
                 own_offsets = in(kI, {E / kRanks + 1}, {double(n.rows)}),
                 source = in(kI, {n.rows}, n.source_row);
  const double row = 2.0 * double(h), sent = double(n.sent) * row, received = double(n.received) * row;
  const auto add = [&](const std::string& name, KernelKind kind, Phase phase, std::vector<Argument> arguments,
                       double sms, double bytes) {
    KernelCase c{"windows",
                 base + " " + name,
                 kind,
                 phase,
                 std::move(arguments),
                 {{"copies", 1}, {"experts_per_rank", double(E / kRanks)}, {"sms", sms}},
                 0,
                 bytes};
    c.window_ranks = kind == KernelKind::push_rows || kind == KernelKind::push_sums ? kRanks : 0;
    all.push_back(std::move(c));
  };
  for (const int sms : {0, 8, 16, 24, 32, 64}) {
    const std::string on = sms == 0 ? "" : " on " + std::to_string(sms) + " SMs";
    add("dispatch fwd" + on, KernelKind::push_rows, Phase::Forward,
        {x, idx, in(kF, {T, k}), in(kI, {E + 1}, routing.offsets), in(kI, {T * k}, routing.row_token),
         token_row, in(kI, {E}, n.row_base), slot, all_tokens, coords, out(kB, {n.most_received, h}),
         out(kF, {n.most_rows}), out(kI, {n.most_rows}), out(kI, {n.most_received, n.listed})},
        sms, double(T) * row + sent);
    add("dispatch bwd" + on, KernelKind::push_rows, Phase::BackwardInput,
        {x, slot, all_tokens, coords, out(kB, {n.most_received, h})}, sms, double(T) * row + sent);
    add("combine fwd" + on, KernelKind::push_sums, Phase::Forward,
        {rows, lists, all_tokens, coords, out(kB, {n.sent, h})}, sms, double(n.rows) * row + received);
    add("combine bwd" + on, KernelKind::push_sums, Phase::BackwardInput,
        {rows, in(kF, {n.rows}), lists, all_tokens, coords, out(kB, {n.sent, h}),
         out(kF, {n.sent, n.listed})},
        sms, double(n.rows) * row + received);
  }
  add("place fwd", KernelKind::place_rows, Phase::Forward,
      {in(kB, {n.received, h}), in(kF, {n.rows}), source, lists, met, own_offsets, out(kB, {n.rows, h}),
       out(kF, {n.rows}), out(kI, {n.rows}), out(kI, {n.received, n.listed})},
      0, double(n.rows) * row + received);
  add("add sums fwd", KernelKind::add_sums, Phase::Forward,
      {in(kB, {n.sent, h}), slot, in(kI, {kRanks + 1}, n.token_offsets), met, out(kB, {T, h})}, 0,
      sent + double(T) * row);
  add("add sums bwd", KernelKind::add_sums, Phase::BackwardInput,
      {in(kB, {n.sent, h}), in(kF, {n.sent, n.listed}), idx, token_row, slot,
       in(kI, {kRanks + 1}, n.token_offsets), met, out(kB, {T, h}), out(kF, {T, k})},
      0, sent + double(T) * row);
}

}  // namespace

void add_windows(CaseList& all) {
  for (const Model& m : models())
    if (m.experts % kRanks == 0) add_exchange(all, m, 4096);
}

}  // namespace pleat::bench
