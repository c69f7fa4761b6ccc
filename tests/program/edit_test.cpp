// Editing a program: where stages end up, and that every reference follows them.
#include "program/edit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "program/brute_order.h"

namespace pleat::program {
namespace {

// Stages "fwd mb0 router_record.N": what is checked is where they are and what they wait for.
Stage copy_stage(int part, ValueId x, ValueId y, int lane = 0) {
  Stage s;
  s.op = Op::router_record;
  s.microbatch = 0;
  s.part = part;
  s.lane = static_cast<int16_t>(lane);
  s.uses = {r(x), w(y)};
  return s;
}

// Six copies in a row, parts 10, 11, ..., from value i to value i + 1; on lanes 0 and 1 in turn.
Program chain() {
  Builder b("chain");
  const int side = b.lane("side", "compute");
  for (int i = 0; i < 7; ++i)
    b.value("v" + std::to_string(i), tensor::Dtype::F32, {4, 4}, Owner::Activations);
  Program p = b.take();
  for (int i = 0; i < 6; ++i) p.stages.push_back(copy_stage(10 + i, i, i + 1, i % 2 ? side : 0));
  return p;
}

std::vector<int> parts(const Program& p) {
  std::vector<int> out;
  for (const Stage& s : p.stages) out.push_back(s.part);
  return out;
}

const Stage& with_part(const Program& p, int part) {
  return *std::find_if(p.stages.begin(), p.stages.end(), [&](const Stage& s) { return s.part == part; });
}

std::vector<int> waits(const Program& p, int part) {
  std::vector<int> out;
  for (const StageId w : with_part(p, part).after) out.push_back(p.stages[size_t(w)].part);
  return out;
}

using Ints = std::vector<int>;

TEST(Edit, NothingToDoChangesNothing) {
  Program p = chain();
  p.stages[3].after = {0, 2};
  EXPECT_EQ(Edit(p).apply(), p);
  EXPECT_EQ(Edit(Program{}).apply(), Program{});
}

TEST(Edit, StagesStandWhereTheyWereAskedFor) {
  Edit edit(chain());
  edit.insert_before(2, copy_stage(1, 0, 1));
  edit.insert_before(2, copy_stage(2, 0, 1));
  const StageId behind = edit.insert_after(2, copy_stage(3, 0, 1));
  edit.insert_after(behind, copy_stage(4, 0, 1));
  edit.insert_before(behind, copy_stage(5, 0, 1));
  edit.insert_before(edit.end(), copy_stage(6, 0, 1));
  edit.insert_before(0, copy_stage(7, 0, 1));
  edit.erase(2);  // what stood beside it stays
  edit.erase(5);
  EXPECT_EQ(edit.num_stages(), 6);
  EXPECT_EQ(edit[behind].part, 3);
  EXPECT_EQ(parts(edit.apply()), (Ints{7, 10, 11, 1, 2, 5, 3, 4, 13, 14, 6}));
}

TEST(Edit, WaitsFollowTheirStages) {
  Edit edit(chain());
  edit.wait(5, 1);
  edit.wait(5, 3);
  edit.wait(5, 1);
  const StageId early = edit.insert_before(1, copy_stage(1, 0, 1));
  edit.wait(4, early);
  const StageId late = edit.insert_before(4, copy_stage(2, 0, 1));
  edit.wait(late, 3);
  const Program p = edit.apply();
  EXPECT_EQ(parts(p), (Ints{10, 1, 11, 12, 13, 2, 14, 15}));
  EXPECT_EQ(with_part(p, 15).after, (std::vector<StageId>{2, 4})) << "ascending, each once";
  EXPECT_EQ(waits(p, 15), (Ints{11, 13}));
  EXPECT_EQ(waits(p, 14), Ints{1});
  EXPECT_EQ(waits(p, 2), Ints{13});
}

TEST(Edit, WhoWaitedForAnErasedStageWaitsForWhatCameBeforeIt) {
  Edit edit(chain());
  edit.wait(3, 0);  // 13 for 10
  edit.wait(4, 3);  // 14 for 13
  edit.wait(5, 4);
  edit.erase(3);  // on lane 1, behind 11
  const Program p = edit.apply();
  EXPECT_EQ(waits(p, 14), (Ints{10, 11}));
  EXPECT_EQ(waits(p, 15), Ints{14});
  // The first of its lane leaves nothing to wait for.
  Edit first(chain());
  first.wait(2, 1);
  first.erase(1);
  EXPECT_EQ(waits(first.apply(), 12), Ints{});
}

TEST(Edit, OneStageStandsForARun) {
  Edit edit(chain());
  edit.wait(2, 0);
  edit.wait(3, 1);
  edit.wait(3, 2);  // inside the run
  edit.wait(4, 2);
  edit.wait(5, 3);
  Stage one = copy_stage(1, 2, 4);
  one.attrs = edit.attrs({{"scale", 2}});
  edit.replace(2, 3, std::move(one));
  const Program p = edit.apply();
  EXPECT_EQ(p.attrs[static_cast<size_t>(with_part(p, 1).attrs)], (AttrSet{{"scale", 2}}));
  EXPECT_EQ(parts(p), (Ints{10, 11, 1, 14, 15}));
  EXPECT_EQ(waits(p, 1), (Ints{10, 11}));
  EXPECT_EQ(waits(p, 14), Ints{1});
  EXPECT_EQ(waits(p, 15), Ints{1});
  Edit single(chain());
  single.replace(0, copy_stage(1, 0, 1));
  EXPECT_EQ(parts(single.apply()), (Ints{1, 11, 12, 13, 14, 15}));
}

TEST(Edit, MovesToADeclaredLane) {
  Edit edit(chain());
  EXPECT_EQ(edit.lane("side", "compute"), 1);
  const int down = edit.lane("d2h", "host_link");
  EXPECT_EQ(down, 2);
  edit.move_to_lane(4, down);
  const Program p = edit.apply();
  EXPECT_EQ(p.lanes[2], (Lane{"d2h", "host_link"}));
  EXPECT_EQ(parts(p), (Ints{10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(p.stages[4].lane, 2);
  EXPECT_DEATH(Edit(chain()).move_to_lane(0, 2), "lane 2 is not declared");
}

TEST(Edit, UsesAreRedirectedFromAStageOn) {
  Program given = chain();
  for (int i = 0; i < 6; ++i) given.stages[size_t(i)].uses[0].value = 0;  // all read v0
  Edit edit(std::move(given));
  const ValueId other = edit.copy_of(0, ".back"), third = edit.copy_of(0, ".third");
  edit.redirect(0, other, 2);
  edit.redirect(0, third, 4);
  edit.insert_before(2, copy_stage(1, 0, other));
  edit.insert_after(2, copy_stage(2, 0, 1));
  const Program p = edit.apply();
  std::vector<ValueId> read;
  for (const Stage& s : p.stages) read.push_back(s.uses[0].value);
  EXPECT_EQ(read, (std::vector<ValueId>{0, 0, 0, other, other, other, third, third}));
  EXPECT_EQ(p.values[size_t(other)].name, "v0.back");
  EXPECT_EQ(p.values[size_t(other)].shape, p.values[0].shape);
}

TEST(Edit, ViewsAreRedirectedWithWhatTheyView) {
  Builder b("views");
  const ValueId x = b.value("x", tensor::Dtype::F32, {4, 4}, Owner::Activations);
  const ValueId half = b.rows(x, 2, 2, "[hi]"), named = b.view(x, "corner", {2}, 3);
  const ValueId y = b.value("y", tensor::Dtype::F32, {4, 4}, Owner::Activations);
  Program given = b.take();
  for (int i = 0; i < 4; ++i) given.stages.push_back(copy_stage(i, i == 3 ? named : half, y));
  Edit edit(std::move(given));
  const ValueId host = edit.copy_of(x, ".host");
  edit.value(host).space = Space::Pinned;
  edit.redirect(x, host, 1);
  const Program p = edit.apply();
  EXPECT_EQ(p.stages[0].uses[0].value, half);
  EXPECT_EQ(p.stages[1].uses[0].value, p.stages[2].uses[0].value) << "one view, however often it is used";
  const Value& view = p.values[size_t(p.stages[2].uses[0].value)];
  EXPECT_EQ(view.name, "x.host[hi]");
  EXPECT_EQ(view.view_of, host);
  EXPECT_EQ(view.offset, 2 * 4 * 4);
  EXPECT_EQ(view.space, Space::Pinned);
  const Value& corner = p.values[size_t(p.stages[3].uses[0].value)];
  EXPECT_EQ(corner.name, "corner.x.host");
  EXPECT_EQ(corner.offset, 3 * 4);
}

TEST(Edit, AWaitForWhatComesLaterIsRefused) {
  EXPECT_DEATH(
      {
        Edit edit(chain());
        edit.wait(1, 4);
        edit.apply();
      },
      "fwd mb0 router_record.11 waits for fwd mb0 router_record.14");
}

// Random programs with random waits: among the stages that stay there is no order that was not there, and
// every wait between two that stay is still there.
TEST(Edit, ErasingAddsNoOrder) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    Program p = random_program(seed, 40);
    std::mt19937 random(seed);
    for (size_t s = 1; s < p.stages.size(); ++s)
      if (random() % 3 == 0) p.stages[s].after.push_back(static_cast<StageId>(random() % s));
    const auto before = brute_order(p);
    Edit edit(p);
    std::vector<size_t> kept;
    for (size_t s = 0; s < p.stages.size(); ++s)
      if (random() % 4 == 0)
        edit.erase(static_cast<StageId>(s));
      else
        kept.push_back(s);
    const Program q = edit.apply();
    ASSERT_EQ(q.stages.size(), kept.size());
    const auto now = brute_order(q);
    for (size_t b = 0; b < kept.size(); ++b) {
      ASSERT_EQ(q.stages[b].uses, p.stages[kept[b]].uses);
      ASSERT_TRUE(std::is_sorted(q.stages[b].after.begin(), q.stages[b].after.end()));
      for (size_t a = 0; a < b; ++a) {
        ASSERT_TRUE(!now[b][a] || before[kept[b]][kept[a]]) << seed;
        for (const StageId waited : p.stages[kept[b]].after)
          ASSERT_TRUE(waited != static_cast<StageId>(kept[a]) || now[b][a]) << seed;
      }
    }
  }
}

// Edits of a large program are made in one walk: a hundred thousand of each kind take no time to speak of.
TEST(Edit, ManyEditsAtOnce) {
  Program p = chain();
  const Stage one = p.stages[0];
  constexpr StageId kMany = 300'000;
  p.stages.assign(size_t{kMany}, one);
  for (StageId s = 0; s < kMany; ++s) {
    p.stages[size_t(s)].part = s;
    if (s > 0) p.stages[size_t(s)].after = {s - 1};
  }
  Edit edit(std::move(p));
  for (StageId s = 0; s + 2 < kMany; s += 3) {
    edit.insert_before(s, copy_stage(kMany + s, 0, 1));
    edit.erase(s + 1);
    edit.redirect(0, edit.copy_of(0, std::to_string(s)), s);
  }
  const Program q = edit.apply();
  ASSERT_EQ(q.stages.size(), size_t{kMany});
  EXPECT_EQ(q.stages.back().part, kMany - 1);
  EXPECT_EQ(q.stages.back().after, std::vector<StageId>{kMany - 2});
  EXPECT_EQ(q.stages.back().uses[0].value, static_cast<ValueId>(q.values.size() - 1));
}

TEST(Unused, StagesThatNothingLastingNeedsGo) {
  Builder b("dead");
  const auto value = [&](const char* name, Life life = Life::Step) {
    return b.value(name, tensor::Dtype::F32, {4, 2}, Owner::Activations, life);
  };
  const ValueId in = value("in", Life::Input), idle = value("idle", Life::Persistent);
  const ValueId a = value("a"), dead = value("dead"), deader = value("deader"),
                out = value("out", Life::Result);
  const ValueId sent = value("sent"), part = b.rows(a, 0, 2, "[lo]"), unused = b.rows(a, 2, 2, "[hi]");
  const auto stage = [&](int n, ValueId x, ValueId y) {
    b.at({0, -1, n});
    b.forward(Op::router_record, {r(x), w(y)});
  };
  stage(0, in, a);
  stage(1, in, dead);
  stage(2, dead, deader);
  stage(3, in, sent);
  b.transfer(Op::send_x, Phase::Forward, Peer::Next, {r(sent)});
  stage(4, part, out);
  Program p = b.take();
  p.stages[5].after = {2};
  const Program q = without_dead_stages(p);
  EXPECT_EQ(q.stages.size(), 4u);
  EXPECT_EQ(q.stages[3].after, std::vector<StageId>{0}) << "what came before the dead one on its lane";
  std::vector<std::string> names;
  for (const Value& v : q.values) names.push_back(v.name);
  EXPECT_EQ(names, (std::vector<std::string>{"in", "idle", "a", "out", "sent", "a[lo]"}));
  EXPECT_EQ(q.values[5].view_of, 2);
  EXPECT_EQ(q.stages[3].uses[0].value, 5);
  EXPECT_EQ(without_dead_stages(q), q);
  (void)idle, (void)unused;
}

TEST(Unused, ValuesGoWhenTheyMay) {
  Program p = chain();
  p.stages.resize(2);
  EXPECT_EQ(without_unused_values(p).values.size(), 3u);
  p.values[5].owner = Owner::Optimizer;
  const Program q = without_unused_values(p, [](const Value& v) { return v.owner == Owner::Optimizer; });
  EXPECT_EQ(q.values.size(), 6u);
  EXPECT_EQ(q.values[5].name, "v6");
}

TEST(Unused, ScratchStaysWithItsStage) {
  Program p = chain();
  p.stages.resize(2);
  Value scratch;
  scratch.name = "scratch";
  p.stages[1].scratch = static_cast<ValueId>(p.values.size());
  p.values.push_back(scratch);
  const Program q = without_unused_values(p);
  EXPECT_EQ(q.values.size(), 4u);
  EXPECT_EQ(q.values[static_cast<size_t>(q.stages[1].scratch)].name, "scratch");
  EXPECT_EQ(q.stages[0].scratch, kNoValue);
}

}  // namespace
}  // namespace pleat::program
