// A pass that moves what a module keeps to another memory and back, written with program::Edit: one screen,
// and the program stays whole.
#include "program/edit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "interpret/check/check.h"
#include "interpret/check/check_network.h"
#include "interpret/print/print.h"
#include "schedule/pass/pass.h"
#include "schedule/pass/recompute.h"
#include "schedule/schedule_support.h"

namespace pleat::schedule {
namespace {

using namespace program;

bool uses(const Stage& s, ValueId v) {
  return std::any_of(s.uses.begin(), s.uses.end(), [&](const Use& use) { return use.value == v; });
}

Program move_away(Program program, const std::string& module) {
  const std::vector<ValueId> kept = freed_by(program, module, {});
  Edit edit(std::move(program));
  const int down = edit.lane("d2h", "host_link"), up = edit.lane("h2d", "host_link");
  for (const ValueId v : kept) {
    StageId last_forward = -1, first_backward = -1;
    for (StageId s = 0; s < edit.num_stages() && first_backward < 0; ++s)
      if (uses(edit[s], v)) (edit[s].phase == Phase::Forward ? last_forward : first_backward) = s;
    const ValueId away = edit.copy_of(v, ".away"), back = edit.copy_of(v, ".back");
    Stage copy;
    copy.op = Op::router_record, copy.microbatch = edit[last_forward].microbatch;
    copy.lane = static_cast<int16_t>(down), copy.part = 2 * v + 1, copy.uses = {r(v), w(away)};
    edit.insert_after(last_forward, copy);
    copy.lane = static_cast<int16_t>(up), copy.part = 2 * v + 2, copy.uses = {r(away), w(back)};
    edit.wait(edit.insert_before(first_backward, copy), first_backward - 1);
    edit.redirect(v, back, first_backward);
  }
  return edit.apply();
}

TEST(Edit, MovesActivationsAwayAndBack) {
  for (const Words& sets :
       {Words{}, Words{"parallel.pp=2", "model.num_layers=4", "train.num_microbatches=4"}}) {
    const config::Config config = make_config(sets);
    RankPrograms ranks = build_ranks(config, config.parallel.pp);
    for (Program& p : ranks.programs) {
      const std::vector<ValueId> kept = freed_by(p, "core_attention", {});
      ASSERT_FALSE(kept.empty());
      const Program plain = p;
      p = move_away(std::move(p), "core_attention");
      EXPECT_EQ(joined(interpret::check(p).faults), "");
      EXPECT_EQ(p.stages.size(), plain.stages.size() + 2 * kept.size());
      EXPECT_TRUE(interpret::parse(interpret::print(p)) == p);
      for (const ValueId v : kept) {
        size_t last = 0;
        for (size_t s = 0; s < p.stages.size(); ++s)
          if (uses(p.stages[s], v)) last = s;
        EXPECT_EQ(p.lanes[size_t(p.stages[last].lane)].name, "d2h") << p.values[size_t(v)].name;
      }
      const interpret::Plan plan = interpret::plan(p);
      EXPECT_EQ(joined(interpret::check_plan(p, plan).faults), "");
      // Waits that were declared before still stand between the same stages.
      const auto waits = [](const Program& q) {
        std::set<std::pair<std::string, std::string>> out;
        for (const Stage& s : q.stages)
          for (const StageId w : s.after)
            if (q.lanes[size_t(s.lane)].name != "h2d")
              out.emplace(stage_name(s), stage_name(q.stages[size_t(w)]));
        return out;
      };
      EXPECT_EQ(waits(p), waits(plain));
      EXPECT_EQ(waits(p).empty(), config.parallel.pp == 1);
    }
    EXPECT_EQ(joined(interpret::check_network(interpret::network_of_roles(ranks.programs)).faults), "");
  }
}

}  // namespace
}  // namespace pleat::schedule
