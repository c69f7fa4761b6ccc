// Meshes, groups and neighbours: the 16-rank tables of the reference, and every small layout by brute force.
#include "layout/layout.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "layout/fit.h"
#include "layout/layout_support.h"

namespace pleat::layout {
namespace {

using Groups = std::vector<std::vector<int>>;

constexpr GroupKind kind_at(int i) { return static_cast<GroupKind>(i); }

// The second pipeline stage has the same groups, 8 ranks on.
Groups both_stages(Groups first) {
  const size_t n = first.size();
  for (size_t i = 0; i < n; ++i) {
    first.push_back(first[i]);
    for (int& r : first.back()) r += 8;
  }
  return first;
}
Groups singletons(int n) {
  Groups out;
  for (int r = 0; r < n; ++r) out.push_back({r});
  return out;
}

Sizes sixteen(int64_t etp, int64_t ep) {
  Sizes s;
  s.world = 16, s.tp = 2, s.cp = 2, s.pp = 2, s.etp = etp, s.ep = ep;
  return s;
}

TEST(Sixteen, Attention) {
  const Layout l(sixteen(1, 4));
  EXPECT_EQ(l.dp(), 2);
  EXPECT_EQ(l.groups(GroupKind::Tensor), both_stages({{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(l.groups(GroupKind::Context), both_stages({{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(l.groups(GroupKind::Data), both_stages({{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(l.groups(GroupKind::DataContext), both_stages({{0, 2, 4, 6}, {1, 3, 5, 7}}));
  EXPECT_EQ(l.groups(GroupKind::TensorContext), both_stages({{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(l.groups(GroupKind::TensorContextData), both_stages({{0, 1, 2, 3, 4, 5, 6, 7}}));
  Groups pipelines;
  for (int r = 0; r < 8; ++r) pipelines.push_back({r, r + 8});
  EXPECT_EQ(l.groups(GroupKind::Pipeline), pipelines);
  EXPECT_EQ(l.groups(GroupKind::Embedding), pipelines);
  EXPECT_EQ(l.groups(GroupKind::TensorPipeline),
            (Groups{{0, 1, 8, 9}, {2, 3, 10, 11}, {4, 5, 12, 13}, {6, 7, 14, 15}}));
}

TEST(Sixteen, ExpertsFoldOverTensorAndContext) {
  const Layout l(sixteen(1, 4));
  EXPECT_EQ(l.edp(), 2);
  EXPECT_EQ(l.groups(GroupKind::Expert), both_stages({{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(l.groups(GroupKind::ExpertTensor), singletons(16));
  EXPECT_EQ(l.groups(GroupKind::ExpertData), both_stages({{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(l.groups(GroupKind::ExpertModel),
            (Groups{{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}}));
}

TEST(Sixteen, ExpertsFoldOverTheWholeStage) {
  const Layout l(sixteen(1, 8));
  EXPECT_EQ(l.edp(), 1);
  EXPECT_EQ(l.groups(GroupKind::Expert), both_stages({{0, 1, 2, 3, 4, 5, 6, 7}}));
  EXPECT_EQ(l.groups(GroupKind::ExpertTensor), singletons(16));
  EXPECT_EQ(l.groups(GroupKind::ExpertData), singletons(16));
}

TEST(Sixteen, ExpertsWithTheirOwnTensorAxis) {
  const Layout l(sixteen(2, 2));
  EXPECT_EQ(l.edp(), 2);
  EXPECT_EQ(l.groups(GroupKind::Expert), both_stages({{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(l.groups(GroupKind::ExpertTensor), both_stages({{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(l.groups(GroupKind::ExpertData), both_stages({{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(l.groups(GroupKind::Dispatch), both_stages({{0, 1, 2, 3}, {4, 5, 6, 7}}));
}

TEST(Layout, FoldedExamplesOfTheReference) {
  Sizes s;
  s.world = 256, s.tp = 4, s.cp = 2, s.pp = 4, s.ep = 64;
  const Layout folded(s);
  EXPECT_EQ(folded.dp(), 8);
  EXPECT_EQ(folded.edp(), 1);
  s = {};
  s.world = 8, s.cp = 8, s.ep = 8;
  EXPECT_EQ(Layout(s).group(GroupKind::Expert, 5), Layout(s).group(GroupKind::Context, 5));
}

TEST(Layout, PlacesNeighboursAndPositions) {
  const Layout l(sixteen(2, 2));
  EXPECT_EQ(l.attention(13), (AttentionPlace{1, 0, 1, 1}));
  EXPECT_EQ(l.expert(13), (ExpertPlace{1, 0, 1, 1}));
  EXPECT_EQ(l.next_stage(3), 11);
  EXPECT_EQ(l.next_stage(11), 3);
  EXPECT_EQ(l.previous_stage(3), 11);
  EXPECT_EQ(l.index_in_group(GroupKind::DataContext, 6), 3);
  EXPECT_SAYS(message_of([&] { l.attention(16); }), "rank 16 of 16");
  EXPECT_SAYS(message_of([&] { l.group(GroupKind::World, -1); }), "rank -1 of 16");
  EXPECT_SAYS(message_of([&] { l.rank_of(AttentionPlace{2, 0, 0, 0}); }), "no rank at tp 2");
  EXPECT_SAYS(message_of([&] { l.rank_of(ExpertPlace{0, -1, 0, 0}); }), "no rank at etp 0 ep -1");
}

TEST(Layout, EmbeddingGroupsAreTheEnds) {
  Sizes s;
  s.world = 8, s.pp = 4;
  const Layout l(s);
  EXPECT_EQ(l.groups(GroupKind::Embedding), (Groups{{0, 6}, {1, 7}}));
  EXPECT_EQ(l.group(GroupKind::Embedding, 2), std::vector<int>());
  EXPECT_EQ(l.index_in_group(GroupKind::Embedding, 2), -1);
  EXPECT_EQ(l.index_in_group(GroupKind::Embedding, 7), 1);
  EXPECT_EQ(Layout(Sizes{}).groups(GroupKind::Embedding), (Groups{{0}}));
}

TEST(Layout, PartsOfAGroup) {
  const std::vector<int> group = {3, 1, 4, 0, 5, 9};
  EXPECT_EQ(inside_part(group, 3, 2), (std::vector<int>{0, 5, 9}));
  EXPECT_EQ(across_parts(group, 3, 2), (std::vector<int>{3, 0}));
  EXPECT_EQ(inside_part(group, 3, 1), group);
  EXPECT_SAYS(message_of([&] { inside_part(group, 0, 4); }), "6 ranks cannot be cut into 4");
}

// Everything the class says, against definitions by search over all ranks.
void expect_consistent(const Sizes& s) {
  const Layout l(s);
  const int n = static_cast<int>(s.world);
  std::vector<AttentionPlace> a;
  std::vector<ExpertPlace> e;
  for (int r = 0; r < n; ++r) {
    a.push_back(l.attention(r)), e.push_back(l.expert(r));
    ASSERT_EQ(l.rank_of(a.back()), r);
    ASSERT_EQ(l.rank_of(e.back()), r);
    ASSERT_EQ(a.back().pp, e.back().pp);  // the one axis both share
    ASSERT_EQ(l.previous_stage(l.next_stage(r)), r);
    AttentionPlace after = a.back();
    after.pp = (after.pp + 1) % s.pp;
    ASSERT_EQ(l.rank_of(after), l.next_stage(r));
    ExpertPlace expert_after = e.back();
    expert_after.pp = after.pp;
    ASSERT_EQ(l.rank_of(expert_after), l.next_stage(r));
  }
  // Two ranks are in one group when they agree in all coordinates the group does not span.
  const std::map<GroupKind, std::function<bool(int, int)>> together = {
      {GroupKind::Tensor,
       [&](int x, int y) { return a[x].cp == a[y].cp && a[x].dp == a[y].dp && a[x].pp == a[y].pp; }},
      {GroupKind::Context,
       [&](int x, int y) { return a[x].tp == a[y].tp && a[x].dp == a[y].dp && a[x].pp == a[y].pp; }},
      {GroupKind::Data,
       [&](int x, int y) { return a[x].tp == a[y].tp && a[x].cp == a[y].cp && a[x].pp == a[y].pp; }},
      {GroupKind::DataContext, [&](int x, int y) { return a[x].tp == a[y].tp && a[x].pp == a[y].pp; }},
      {GroupKind::TensorContext, [&](int x, int y) { return a[x].dp == a[y].dp && a[x].pp == a[y].pp; }},
      {GroupKind::TensorContextData, [&](int x, int y) { return a[x].pp == a[y].pp; }},
      {GroupKind::TensorPipeline, [&](int x, int y) { return a[x].cp == a[y].cp && a[x].dp == a[y].dp; }},
      {GroupKind::Pipeline,
       [&](int x, int y) { return a[x].tp == a[y].tp && a[x].cp == a[y].cp && a[x].dp == a[y].dp; }},
      {GroupKind::Expert,
       [&](int x, int y) { return e[x].etp == e[y].etp && e[x].edp == e[y].edp && e[x].pp == e[y].pp; }},
      {GroupKind::ExpertTensor,
       [&](int x, int y) { return e[x].ep == e[y].ep && e[x].edp == e[y].edp && e[x].pp == e[y].pp; }},
      {GroupKind::Dispatch, [&](int x, int y) { return e[x].edp == e[y].edp && e[x].pp == e[y].pp; }},
      {GroupKind::ExpertModel, [&](int x, int y) { return e[x].edp == e[y].edp; }},
      {GroupKind::ExpertData,
       [&](int x, int y) { return e[x].etp == e[y].etp && e[x].ep == e[y].ep && e[x].pp == e[y].pp; }},
      {GroupKind::World, [&](int, int) { return true; }},
  };
  const std::map<GroupKind, int64_t> sizes = {
      {GroupKind::Tensor, s.tp},
      {GroupKind::Context, s.cp},
      {GroupKind::Data, l.dp()},
      {GroupKind::DataContext, l.dp() * s.cp},
      {GroupKind::TensorContext, s.tp * s.cp},
      {GroupKind::TensorContextData, s.world / s.pp},
      {GroupKind::TensorPipeline, s.tp * s.pp},
      {GroupKind::Pipeline, s.pp},
      {GroupKind::Expert, s.ep},
      {GroupKind::ExpertTensor, s.etp},
      {GroupKind::Dispatch, s.etp * s.ep},
      {GroupKind::ExpertModel, s.etp * s.ep * s.pp},
      {GroupKind::ExpertData, l.edp()},
      {GroupKind::World, s.world},
  };
  for (const auto& [kind, same] : together) {
    const Groups groups = l.groups(kind);
    ASSERT_EQ(l.group_size(kind), sizes.at(kind)) << name_of(kind);
    std::vector<int> seen(static_cast<size_t>(n), 0);
    for (const auto& group : groups) {
      ASSERT_EQ(static_cast<int64_t>(group.size()), l.group_size(kind));
      for (size_t i = 0; i < group.size(); ++i) {
        ++seen[static_cast<size_t>(group[i])];
        ASSERT_TRUE(same(group[0], group[i])) << name_of(kind);
        ASSERT_EQ(l.group(kind, group[i]), group);
        ASSERT_EQ(l.index_in_group(kind, group[i]), static_cast<int64_t>(i));
      }
    }
    for (const int count : seen) ASSERT_EQ(count, 1) << name_of(kind);
  }
}

TEST(Layout, EverySmallLayoutByBruteForce) {
  const std::vector<std::string> orders = {"tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "pp-tp-cp-dp-ep",
                                           "dp-ep-pp-cp-tp"};
  int num_fits = 0, num_misfits = 0;
  for (const std::string& order : orders)
    for (const int64_t world : {1, 2, 3, 4, 6, 8, 12, 16})
      for (int64_t tp = 1; tp <= 4; ++tp)
        for (int64_t cp = 1; cp <= 3; ++cp)
          for (int64_t pp = 1; pp <= 4; ++pp)
            for (const int64_t ep : {1, 2, 3, 4, 8})
              for (int64_t etp = 1; etp <= 2; ++etp) {
                const Sizes s{world, tp, cp, pp, 1, ep, etp, order, 0};
                if (misfit(s).empty()) {
                  ++num_fits;
                  expect_consistent(s);
                  if (HasFatalFailure()) FAIL() << world << ' ' << order;
                } else {
                  ++num_misfits;
                  const bool divides = world % (tp * cp * pp) == 0 && world % (etp * ep * pp) == 0;
                  // With pp last nothing but division can fail.
                  ASSERT_FALSE(divides && order.ends_with("-pp"));
                  ASSERT_THROW(Layout{s}, base::Error);
                }
              }
  EXPECT_GT(num_fits, 500);
  EXPECT_GT(num_misfits, 500);
}

TEST(Layout, PipelinesMustBeTheSameRanks) {
  Sizes s;
  s.world = 16, s.tp = 2, s.pp = 2, s.ep = 4, s.order = "tp-cp-ep-pp-dp";  // dp 4, edp 2
  const std::string text = message_of([&] { Layout l(s); });
  EXPECT_SAYS(text,
              "pipeline neighbours are 2 ranks apart for attention (tp=2 cp=1 dp=4) and 4 for experts "
              "(etp=1 ep=4 edp=2)");
  s.ep = 2;
  EXPECT_EQ(Layout(s).dp(), Layout(s).edp());
  s.ep = 4, s.pp = 1;
  EXPECT_NO_THROW(Layout{s});
}

TEST(Layout, SaysTheEquationAndTheNearestSettings) {
  Sizes s;
  s.world = 8, s.tp = 3;
  EXPECT_EQ(
      message_of([&] { Layout l(s); }),
      "8 ranks cannot be laid out as tp=3 cp=1 pp=1 ep=1 etp=1: attention needs ranks = tp x cp x pp x dp, "
      "but 8 / (3 x 1 x 1) = 2.667.\n"
      "Nearest settings for 8 ranks:\n"
      "  tp=4 cp=1 pp=1 ep=1 etp=1 (dp=2 edp=8)\n"
      "  tp=2 cp=1 pp=1 ep=1 etp=1 (dp=4 edp=8)\n"
      "  tp=8 cp=1 pp=1 ep=1 etp=1 (dp=1 edp=8)\n"
      "As asked, a multiple of 3 ranks is needed.");
  s = {};
  s.world = 8, s.tp = 2, s.pp = 2, s.ep = 8, s.num_experts = 16;
  const std::string text = message_of([&] { Layout l(s); });
  EXPECT_SAYS(text, "experts need ranks = etp x ep x pp x edp, but 8 / (1 x 8 x 2) = 0.5");
  EXPECT_SAYS(text, "tp=2 cp=1 pp=2 ep=4 etp=1 (dp=2 edp=1)");
  EXPECT_SAYS(text, "tp=2 cp=1 pp=1 ep=8 etp=1 (dp=4 edp=1)");
  EXPECT_SAYS(text, "a multiple of 16 ranks");
  s = {};
  s.world = 8, s.ep = 8, s.num_experts = 12;
  EXPECT_SAYS(message_of([&] { Layout l(s); }), "12 / 8 = 1.5");
  EXPECT_SAYS(message_of([&] { Layout l(s); }), "ep=4");
  s.ep = 0;
  EXPECT_SAYS(message_of([&] { Layout l(s); }), "ep = 0; needed is 1 to");
}

// By exhaustive search: nothing nearer exists.
TEST(Layout, NearestSettingsAreValidAndNearest) {
  const auto cost = [](const Sizes& from, const Sizes& to) {
    double sum = 0;
    for (auto field : {&Sizes::tp, &Sizes::cp, &Sizes::pp, &Sizes::ep, &Sizes::etp})
      if (from.*field != to.*field) sum += 1 + std::abs(std::log2(double(to.*field) / double(from.*field)));
    return sum;
  };
  for (const std::string order : {"tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"})
    for (const Sizes& asked : {Sizes{12, 8, 1, 1, 1, 8, 1, order, 0}, Sizes{12, 5, 2, 3, 1, 4, 2, order, 8},
                               Sizes{24, 2, 5, 4, 1, 4, 1, order, 0}, Sizes{7, 2, 2, 2, 1, 2, 2, order, 4}}) {
      const std::vector<Sizes> found = nearest_fits(asked, 3);
      ASSERT_EQ(found.size(), 3u);
      std::vector<double> all;
      for (int64_t tp = 1; tp <= asked.world; ++tp)
        for (int64_t cp = 1; tp * cp <= asked.world; ++cp)
          for (int64_t pp = 1; tp * cp * pp <= asked.world; ++pp)
            for (int64_t ep = 1; ep * pp <= asked.world; ++ep)
              for (int64_t etp = 1; etp * ep * pp <= asked.world; ++etp) {
                Sizes s = asked;
                s.tp = tp, s.cp = cp, s.pp = pp, s.ep = ep, s.etp = etp;
                if (misfit(s).empty()) all.push_back(cost(asked, s));
              }
      std::sort(all.begin(), all.end());
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(misfit(found[i]), "");
        EXPECT_NEAR(cost(asked, found[i]), all[i], 1e-12);
      }
    }
}

TEST(Layout, NearestSettingsFitTheModel) {
  Sizes s;
  s.world = 6, s.tp = 4;
  const Judge four_heads = [](const Sizes& sizes) -> std::optional<std::string> {
    if (4 % sizes.tp != 0) return {};
    return sizes.tp == 2 ? "another length" : "";
  };
  for (const Sizes& fit : nearest_fits(s, 3, four_heads)) EXPECT_EQ(4 % fit.tp, 0) << fit.tp;
  const std::string text = message_of([&] { require_fit(s, four_heads); });
  EXPECT_EQ(text.find("\n  tp=3"), std::string::npos) << text;
  EXPECT_SAYS(text, "\n  tp=2");
  EXPECT_SAYS(text, ", with another length");
  EXPECT_SAYS(message_of([&] { require_fit(s, [](const Sizes&) { return std::nullopt; }); }),
              "No setting of them lets this model run on 6 ranks");
}

TEST(Layout, OrdersNameEveryAxisOnce) {
  for (const char* order :
       {"", "tp", "tp-cp-ep-dp", "tp-cp-ep-dp-dp", "tp-cp-ep-dp-pp-tp", "tp-cp-ep-dp-xx", "tp cp ep dp pp"}) {
    Sizes s;
    s.order = order;
    EXPECT_SAYS(message_of([&] { Layout l(s); }), "each once, as in \"tp-cp-ep-dp-pp\"");
  }
}

TEST(Layout, ThousandsOfRanksAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  Sizes s;
  s.world = 4096, s.tp = 4, s.cp = 2, s.pp = 16, s.ep = 64;
  const Layout l(s);
  size_t num = 0;
  for (int k = 0; k < kNumGroupKinds; ++k)
    for (const auto& group : l.groups(kind_at(k))) num += group.size();
  EXPECT_EQ(num, 4096u * 14 + 512);
  s.world = 5040 * 16, s.tp = 11, s.ep = 13;
  EXPECT_EQ(nearest_fits(s, 3).size(), 3u);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 1.0);
}

}  // namespace
}  // namespace pleat::layout
