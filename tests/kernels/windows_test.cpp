// Rows through windows, rank by rank in one process, against what a list of choices says directly: who gets which token,
// in which order experts see their rows, how many rows move, and what comes back.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>

#include "kernels/contract.h"
#include "kernels/kernel_support.h"

namespace pleat::kernels::testing {
namespace {

using program::Access;
using program::KernelKind;
using program::Phase;
using tensor::Dtype;

constexpr size_t kWindowBytes = 1 << 18;

// One rank: values by name, some of them in its window, at the same place on all ranks.
struct Rank {
  std::map<std::string, Tensor> values;
  std::vector<std::byte> window = std::vector<std::byte>(kWindowBytes);
};

struct Group {
  int64_t ranks, copies, experts, top_k, tokens, width;
  std::vector<Rank> of;
  std::map<std::string, std::pair<size_t, Tensor>> windows;  // offset, and a tensor of the shape
  size_t taken = 0;
  device::Pool pool{2};

  Group(int64_t n, int64_t c, int64_t e, int64_t k, int64_t t, int64_t w)
      : ranks(n), copies(c), experts(e), top_k(k), tokens(t), width(w), of(static_cast<size_t>(n)) {}
  int64_t expert_ranks() const { return ranks / copies; }
  int64_t own() const { return experts / expert_ranks(); }
  int64_t listed() const { return std::min(top_k, own()); }

  void window(const std::string& name, Dtype dtype, std::vector<int64_t> shape) {
    windows[name] = {taken, Tensor::zeros(dtype, std::move(shape))};
    taken += (windows[name].second.bytes.size() + 255) / 256 * 256;
    ASSERT_LE(taken, kWindowBytes);
  }

  // "name" is read, "+name" written.
  void call(int64_t rank, KernelKind kind, Phase phase, const std::vector<std::string>& names) {
    Rank& r = of[static_cast<size_t>(rank)];
    std::vector<Arg> args;
    for (const std::string& text : names) {
      const bool writes = text[0] == '+';
      const std::string name = text.substr(writes ? 1 : 0);
      const auto access = writes ? Access::Write : Access::Read;
      if (const auto w = windows.find(name); w != windows.end())
        args.push_back({r.window.data() + w->second.first, w->second.second.dtype, w->second.second.shape,
                        access, true});
      else
        args.push_back(
            {r.values.at(name).bytes.data(), r.values.at(name).dtype, r.values.at(name).shape, access, true});
    }
    name_arguments(args, kind, phase);
    std::vector<std::byte*> begins;
    for (Rank& other : of) begins.push_back(other.window.data());
    const program::AttrSet attrs = {
        {"copies", double(copies)}, {"experts_per_rank", double(own())}, {"sms", 0}};
    const Invocation invocation{args, &attrs, &pool, {}, {begins, static_cast<int>(rank)}};
    check_contract(kind, phase, invocation);
    find_cpu_kernel(kind, phase)(invocation)(invocation);
  }
  void call_all(KernelKind kind, Phase phase, const std::vector<std::string>& names) {
    for (int64_t r = 0; r < ranks; ++r) call(r, kind, phase, names);
  }
};

// Every rank's choices, some of them dropped, with the plan dispatch_plan would make.
void route(Group& g, uint64_t seed, double drop) {
  const int64_t T = g.tokens, k = g.top_k, E = g.experts;
  Tensor all = Tensor::zeros(Dtype::I32, {g.ranks, E + 1});
  for (int64_t r = 0; r < g.ranks; ++r) {
    auto& v = g.of[static_cast<size_t>(r)].values;
    const Tensor noise = Tensor::normal(Dtype::F64, {T, E}, seed + static_cast<uint64_t>(r)),
                 chance = Tensor::normal(Dtype::F64, {T, k}, 99 + seed + static_cast<uint64_t>(r));
    v["idx"] = Tensor::zeros(Dtype::I32, {T, k});
    v["probs"] = Tensor::normal(Dtype::F64, {T, k}, 7 + seed + static_cast<uint64_t>(r));
    v["x"] = Tensor::normal(Dtype::F64, {T, g.width}, 17 + seed + static_cast<uint64_t>(r));
    v["coords"] = Tensor::zeros(Dtype::I64, {program::kNumGroups});
    v["coords"].set(static_cast<int64_t>(program::Group::Dispatch), double(r));
    v["token_row"] = Tensor::of(Dtype::I32, {T, k}, std::vector<double>(static_cast<size_t>(T * k), -1));
    v["row_token"] = Tensor::of(Dtype::I32, {T * k}, std::vector<double>(static_cast<size_t>(T * k), -1));
    v["offsets"] = Tensor::zeros(Dtype::I32, {E + 1});
    for (int64_t t = 0; t < T; ++t) {
      std::vector<int64_t> order(static_cast<size_t>(E));
      for (int64_t e = 0; e < E; ++e) order[static_cast<size_t>(e)] = e;
      std::sort(order.begin(), order.end(),
                [&](int64_t a, int64_t b) { return noise.at(t * E + a) > noise.at(t * E + b); });
      std::sort(order.begin(), order.begin() + k);
      for (int64_t s = 0; s < k; ++s) v["idx"].set(t * k + s, double(order[static_cast<size_t>(s)]));
    }
    int64_t row = 0;
    for (int64_t e = 0; e < E; ++e) {
      v["offsets"].set(e, double(row));
      for (int64_t i = 0; i < T * k; ++i)
        if (v["idx"].at(i) == double(e) && chance.at(i) > drop) {
          v["token_row"].set(i, double(row));
          v["row_token"].set(row++, double(i / k));
        }
    }
    v["offsets"].set(E, double(row));
    for (int64_t e = 0; e <= E; ++e) all.set(r * (E + 1) + e, v["offsets"].at(e));
  }
  for (Rank& r : g.of) r.values["all_offsets"] = all;
}

struct Case {
  int64_t ranks, copies, experts, top_k, tokens;
  double drop;
};

TEST(Windows, RowsArriveInOrderAndSumsComeBack) {
  for (const Case& c :
       {Case{2, 1, 4, 2, 9, -9}, Case{4, 1, 8, 3, 13, -9}, Case{4, 1, 8, 3, 13, 0.3}, Case{4, 2, 8, 2, 7, 0},
        Case{8, 1, 16, 6, 11, -9}, Case{2, 2, 4, 2, 5, -9}, Case{4, 1, 4, 1, 6, 9}}) {
    SCOPED_TRACE(::testing::Message() << c.ranks << " ranks, " << c.copies << " copies, drop " << c.drop);
    Group g(c.ranks, c.copies, c.experts, c.top_k, c.tokens, 5);
    route(g, 11, c.drop);
    const int64_t T = g.tokens, k = g.top_k, P = g.expert_ranks(), El = g.own(), K = g.listed(),
                  R = g.ranks * T * std::min(k, El), received = g.ranks * T,
                  returned = T * std::min(k, P) * g.copies;
    for (Rank& r : g.of) {
      r.values["token_offsets"] = Tensor::nan(Dtype::I32, {P + 1});
      r.values["token_slot"] = Tensor::nan(Dtype::I32, {T, P});
      r.values["row_base"] = Tensor::nan(Dtype::I32, {g.experts});
      r.values["own_offsets"] = Tensor::nan(Dtype::I32, {El + 1});
      r.values["met"] = Tensor::of(Dtype::U8, {1}, {1});
      r.values["rows"] = Tensor::nan(Dtype::F64, {R, g.width});
      r.values["row_probs"] = Tensor::nan(Dtype::F64, {R});
      r.values["source_row"] = Tensor::nan(Dtype::I32, {R});
      r.values["token_rows"] = Tensor::nan(Dtype::I32, {received, K});
      r.values["y"] = Tensor::nan(Dtype::F64, {T, g.width});
      r.values["dprobs"] = Tensor::nan(Dtype::F64, {T, k});
    }
    g.window("w_rows", Dtype::F64, {received, g.width});
    g.window("w_probs", Dtype::F64, {R});
    g.window("w_source", Dtype::I32, {R});
    g.window("w_lists", Dtype::I32, {received, K});
    g.window("w_sums", Dtype::F64, {returned, g.width});
    g.window("w_prob_sums", Dtype::F64, {returned, K});

    g.call_all(KernelKind::send_plan, Phase::Forward,
               {"token_row", "idx", "all_offsets", "coords", "+token_offsets", "+token_slot", "+row_base",
                "+own_offsets"});
    // What moves: every token once per rank that has a kept expert of it, counted from the choices.
    Tensor all = Tensor::zeros(Dtype::I32, {g.ranks, P + 1});
    for (int64_t r = 0; r < g.ranks; ++r) {
      auto& v = g.of[static_cast<size_t>(r)].values;
      std::set<std::pair<int64_t, int64_t>> pairs;
      for (int64_t i = 0; i < T * k; ++i)
        if (v["token_row"].at(i) >= 0) pairs.emplace(i / k, static_cast<int64_t>(v["idx"].at(i)) / El);
      EXPECT_EQ(v["token_offsets"].at(P), double(pairs.size()));
      for (int64_t p = 0; p <= P; ++p) all.set(r * (P + 1) + p, v["token_offsets"].at(p));
    }
    for (Rank& r : g.of) r.values["all_tokens"] = all;
    g.call_all(KernelKind::push_rows, Phase::Forward,
               {"x", "idx", "probs", "offsets", "row_token", "token_row", "row_base", "token_slot",
                "all_tokens", "coords", "+w_rows", "+w_probs", "+w_source", "+w_lists"});
    g.call_all(KernelKind::place_rows, Phase::Forward,
               {"w_rows", "w_probs", "w_source", "w_lists", "met", "own_offsets", "+rows", "+row_probs",
                "+source_row", "+token_rows"});
    for (int64_t r = 0; r < g.ranks; ++r) {
      auto& v = g.of[static_cast<size_t>(r)].values;
      int64_t row = 0;
      for (int64_t e = r / g.copies * El; e < (r / g.copies + 1) * El; ++e) {
        EXPECT_EQ(v["own_offsets"].at(e - r / g.copies * El), double(row));
        for (int64_t source = 0; source < g.ranks; ++source) {
          auto& from = g.of[static_cast<size_t>(source)].values;
          for (int64_t i = 0; i < T * k; ++i) {
            if (from["idx"].at(i) != double(e) || from["token_row"].at(i) < 0) continue;
            EXPECT_EQ(v["row_probs"].at(row), from["probs"].at(i));
            for (int64_t j = 0; j < g.width; ++j)
              EXPECT_EQ(v["rows"].at(row * g.width + j), from["x"].at(i / k * g.width + j));
            ++row;
          }
        }
      }
      EXPECT_EQ(v["own_offsets"].at(El), double(row));
      // What experts make of them: twice the row, on each copy another part.
      for (int64_t i = 0; i < row * g.width; ++i)
        v["rows"].set(i, 2.0 * v["rows"].at(i) + double(r % g.copies));
    }
    g.call_all(KernelKind::push_sums, Phase::BackwardInput,
               {"rows", "row_probs", "token_rows", "all_tokens", "coords", "+w_sums", "+w_prob_sums"});
    g.call_all(
        KernelKind::add_sums, Phase::BackwardInput,
        {"w_sums", "w_prob_sums", "idx", "token_row", "token_slot", "token_offsets", "met", "+y", "+dprobs"});
    for (int64_t r = 0; r < g.ranks; ++r) {
      auto& v = g.of[static_cast<size_t>(r)].values;
      for (int64_t t = 0; t < T; ++t) {
        double kept = 0;
        for (int64_t s = 0; s < k; ++s) {
          const int64_t i = t * k + s;
          const bool has = v["token_row"].at(i) >= 0;
          kept += has;
          EXPECT_EQ(v["dprobs"].at(i), has ? double(g.copies) * v["probs"].at(i) : 0.0);
        }
        for (int64_t j = 0; j < g.width; ++j) {
          double want = 0;
          for (int64_t copy = 0; copy < g.copies; ++copy)
            want += kept * (2.0 * v["x"].at(t * g.width + j) + double(copy));
          EXPECT_NEAR(v["y"].at(t * g.width + j), want, 1e-12 * (1 + std::abs(want)));
        }
      }
    }
    // Where ranks did not meet, nothing of it is used.
    g.of[0].values["met"].set(0, 0);
    g.call(0, KernelKind::add_sums, Phase::Forward, {"w_sums", "token_slot", "token_offsets", "met", "+y"});
    EXPECT_TRUE(std::isnan(g.of[0].values["y"].at(0)));
    g.call(0, KernelKind::place_rows, Phase::Forward,
           {"w_rows", "w_probs", "w_source", "w_lists", "met", "own_offsets", "+rows", "+row_probs",
            "+source_row", "+token_rows"});
    for (int64_t i = 0; i < R * g.width; ++i) EXPECT_TRUE(std::isnan(g.of[0].values["rows"].at(i)));
  }
}

// Bytes that a rank's call changes in the windows of others, against those its choices ask for.
TEST(Windows, OnlyWhatTheRoutingAsksForIsStoredIntoPeers) {
  for (const Case& c : {Case{4, 1, 8, 3, 13, -9}, Case{4, 1, 8, 3, 13, 0.3}, Case{4, 2, 8, 2, 7, 0},
                        Case{8, 1, 16, 6, 11, -9}}) {
    SCOPED_TRACE(::testing::Message() << c.ranks << " ranks, " << c.copies << " copies, drop " << c.drop);
    Group g(c.ranks, c.copies, c.experts, c.top_k, c.tokens, 5);
    route(g, 5, c.drop);
    const int64_t T = g.tokens, k = g.top_k, P = g.expert_ranks(), El = g.own(), K = g.listed(),
                  R = g.ranks * T * std::min(k, El), received = g.ranks * T,
                  returned = T * std::min(k, P) * g.copies;
    Tensor all = Tensor::zeros(Dtype::I32, {g.ranks, P + 1});
    for (Rank& r : g.of) {
      r.values["token_offsets"] = Tensor::nan(Dtype::I32, {P + 1});
      r.values["token_slot"] = Tensor::nan(Dtype::I32, {T, P});
      r.values["row_base"] = Tensor::nan(Dtype::I32, {g.experts});
      r.values["own_offsets"] = Tensor::nan(Dtype::I32, {El + 1});
      r.values["rows"] = Tensor::nan(Dtype::F64, {R, g.width});
      r.values["row_probs"] = Tensor::nan(Dtype::F64, {R});
      r.values["source_row"] = Tensor::nan(Dtype::I32, {R});
      r.values["token_rows"] = Tensor::nan(Dtype::I32, {received, K});
      r.values["met"] = Tensor::of(Dtype::U8, {1}, {1});
    }
    g.window("w_rows", Dtype::F64, {received, g.width});
    g.window("w_probs", Dtype::F64, {R});
    g.window("w_source", Dtype::I32, {R});
    g.window("w_lists", Dtype::I32, {received, K});
    g.window("w_sums", Dtype::F64, {returned, g.width});
    g.call_all(KernelKind::send_plan, Phase::Forward,
               {"token_row", "idx", "all_offsets", "coords", "+token_offsets", "+token_slot", "+row_base",
                "+own_offsets"});
    for (int64_t r = 0; r < g.ranks; ++r)
      for (int64_t p = 0; p <= P; ++p)
        all.set(r * (P + 1) + p, g.of[static_cast<size_t>(r)].values["token_offsets"].at(p));
    for (Rank& r : g.of) r.values["all_tokens"] = all;

    // By words of four bytes, in which a store never leaves the pattern behind.
    const auto stored_by = [&](int64_t rank, KernelKind kind, const std::vector<std::string>& names) {
      constexpr uint32_t kPattern = 0xa5c3f00d;
      std::vector<std::vector<std::byte>> before;
      for (Rank& r : g.of) {
        before.push_back(r.window);
        auto* words = reinterpret_cast<uint32_t*>(r.window.data());
        std::fill_n(words, kWindowBytes / 4, kPattern);
      }
      g.call(rank, kind, Phase::Forward, names);
      int64_t bytes = 0;
      for (int64_t other = 0; other < g.ranks; ++other) {
        std::vector<std::byte>& window = g.of[static_cast<size_t>(other)].window;
        auto* words = reinterpret_cast<uint32_t*>(window.data());
        auto* old = reinterpret_cast<uint32_t*>(before[static_cast<size_t>(other)].data());
        for (size_t i = 0; i < kWindowBytes / 4; ++i) {
          if (words[i] == kPattern) continue;
          old[i] = words[i];
          bytes += other == rank ? 0 : 4;
        }
        window = before[static_cast<size_t>(other)];
      }
      return bytes;
    };
    for (int64_t r = 0; r < g.ranks; ++r) {
      auto& v = g.of[static_cast<size_t>(r)].values;
      int64_t tokens = 0, rows = 0;
      std::set<std::pair<int64_t, int64_t>> seen;
      for (int64_t i = 0; i < T * k; ++i) {
        if (v["token_row"].at(i) < 0) continue;
        const int64_t p = static_cast<int64_t>(v["idx"].at(i)) / El;
        const int64_t others = g.copies - (r / g.copies == p);  // ranks of the expert that are not this one
        rows += others;
        if (seen.emplace(i / k, p).second) tokens += others;
      }
      EXPECT_EQ(stored_by(r, KernelKind::push_rows,
                          {"x", "idx", "probs", "offsets", "row_token", "token_row", "row_base", "token_slot",
                           "all_tokens", "coords", "+w_rows", "+w_probs", "+w_source", "+w_lists"}),
                tokens * (g.width * 8 + K * 4) + rows * (8 + 4));
    }
    g.call_all(KernelKind::place_rows, Phase::Forward,
               {"w_rows", "w_probs", "w_source", "w_lists", "met", "own_offsets", "+rows", "+row_probs",
                "+source_row", "+token_rows"});
    for (int64_t r = 0; r < g.ranks; ++r) {
      int64_t sums = 0;  // of tokens of other ranks that came here
      for (int64_t source = 0; source < g.ranks; ++source)
        if (source != r)
          sums += static_cast<int64_t>(all.at(source * (P + 1) + r / g.copies + 1) -
                                       all.at(source * (P + 1) + r / g.copies));
      EXPECT_EQ(
          stored_by(r, KernelKind::push_sums, {"rows", "token_rows", "all_tokens", "coords", "+w_sums"}),
          sums * g.width * 8);
    }
  }
}

}  // namespace
}  // namespace pleat::kernels::testing
