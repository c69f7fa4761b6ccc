// What offload costs: nothing where compute is long enough to hide the copies, and by formula where the host's link is
// too slow.
#include <gtest/gtest.h>

#include <algorithm>

#include "cost/machine_file.h"
#include "interpret/simulate/step_parts.h"
#include "schedule/schedule_support.h"
#include "schedule/simulated_step.h"

namespace pleat::schedule {
namespace {

using namespace program;

interpret::StepParts parts_of_lanes(const Program& p, const interpret::Simulation& s) {
  return interpret::step_parts(p, s.nodes[0].timeline, s.step_ns, [](const Program& of, const Stage& stage) {
    const Lane& lane = of.lanes[size_t(stage.lane)];
    return lane.resource == "host_link" ? lane.name : std::string();
  });
}

int64_t exposed(const interpret::StepParts& parts, const std::string& lane) {
  for (const interpret::StepPart& part : parts.parts)
    if (part.name == lane) return part.exposed_ns;
  return -1;
}

// L equal layers of F forward and B backward, copies of D each way of all but the last K: the forward ends with the last
// of L - K copies, which the layer behind it waits for, or with its last layer; the backward likewise.
TEST(OffloadTime, EqualLayersTakeTheFormula) {
  constexpr int kLayers = 6;
  constexpr int64_t kForward = 100, kBackward = 220;
  for (const int64_t keep : {1, 2, 3})
    for (const int64_t copy : {0, 40, 100, 120, 180, 240, 300, 1000}) {
      SCOPED_TRACE(fmt::format("keep {} copy {}", keep, copy));
      const RankPrograms r =
          build_ranks(make_config({fmt::format("model.num_layers={}", kLayers), "train.num_microbatches=1",
                                   "moe.shared_ffn_hidden_size=0", "offload.modules=[\"attn_norm\"]",
                                   "offload.min_bytes=1024", fmt::format("offload.keep_last={}", keep)}),
                      1);
      const interpret::Simulation s = interpret::simulate(
          interpret::network_of_roles(r.programs), [&](const Program&, const Stage& st) -> int64_t {
            if (st.op == Op::offload || st.op == Op::fetch) return copy;
            if (st.op != Op::attention) return 0;
            return st.phase == Phase::Forward ? kForward : kBackward;
          });
      const int64_t copies = kLayers - keep;
      const int64_t forward = std::max(kLayers * kForward, copies * copy + (keep - 1) * kForward),
                    backward = std::max(kLayers * kBackward, copies * copy + (keep - 1) * kBackward);
      EXPECT_EQ(s.step_ns, forward + backward);
      const interpret::StepParts parts = parts_of_lanes(r.programs[0], s);
      EXPECT_EQ(parts.work_ns, kLayers * (kForward + kBackward));
      EXPECT_EQ(exposed(parts, "d2h"), forward - kLayers * kForward);
      EXPECT_EQ(exposed(parts, "h2d"), backward - kLayers * kBackward);
      EXPECT_EQ(parts.idle_ns, 0);
    }
}

// On a described machine: what the link cannot carry in time shows on its lanes and in the step, and nothing else does.
TEST(OffloadTime, ASlowLinkToTheHostShows) {
  // Large enough that its layers take longer than a launch.
  const Words model = {"model.hidden_size=2048", "model.num_heads=16",       "model.num_kv_heads=4",
                       "model.num_layers=8",     "moe.ffn_hidden_size=1024", "moe.shared_ffn_hidden_size=0",
                       "train.seq_len=4096",     "train.num_microbatches=1", "model.dtype=\"bfloat16\"",
                       "device.kind=\"cuda\""};
  const Words keys = {"offload.modules=[\"attn_norm\",\"expert_up\"]"};
  const auto step_on = [&](double gb_s, bool offloads) {
    Words sets = model;
    if (offloads) sets.insert(sets.end(), keys.begin(), keys.end());
    const config::Config c = make_config(sets);
    const RankPrograms r = build_ranks(c, 1);
    cost::Machine machine = cost::find_machine("h200");
    machine.node.host_link_gb_s = gb_s, machine.node.host_link_both_gb_s = gb_s;
    const Ground ground = make_ground(machine);
    const interpret::Simulation s = SimulatedStep(c, r, ground).run();
    double bytes = 0;
    for (const Stage& stage : r.programs[0].stages)
      if (stage.op == Op::offload)
        bytes += double(num_bytes(r.programs[0].values[size_t(stage.uses[0].value)]));
    const interpret::StepParts parts = parts_of_lanes(r.programs[0], s);
    return std::tuple(s.step_ns, exposed(parts, "d2h") + exposed(parts, "h2d"), bytes);
  };
  const auto [without, few, none] = step_on(1000, false);
  EXPECT_EQ(none, 0);
  const auto [fast, hidden, bytes] = step_on(1000, true);
  EXPECT_GT(bytes, 1e8);
  EXPECT_LE(fast, without + without / 20) << "copies take a little of the processor";
  EXPECT_LE(hidden, without / 20);
  int64_t before = fast, shown_before = hidden;
  for (const double gb_s : {50.0, 20.0, 10.0, 5.0}) {
    const auto [step, shown, moved] = step_on(gb_s, true);
    SCOPED_TRACE(fmt::format("{} GB/s", gb_s));
    EXPECT_EQ(moved, bytes);
    EXPECT_GE(step, before);
    EXPECT_GE(shown, shown_before);
    EXPECT_GE(double(step), 2 * bytes / gb_s) << "one way in the forward, the other in the backward";
    // The rest of the step goes on beside them.
    EXPECT_LE(double(step), double(without) + 2 * bytes / gb_s + double(without) / 10);
    before = step, shown_before = shown;
  }
  EXPECT_GT(shown_before, without) << "bound by the link";
}

}  // namespace
}  // namespace pleat::schedule
