// device.in_order has an effect exactly where a step has stages on several lanes.
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "schedule/ranks.h"
#include "schedule/schedule_support.h"

namespace pleat::schedule {
namespace {

TEST(Lanes, InOrderIsTakenWhereThereAreSeveral) {
  const Words dense = {"moe.num_experts=", "moe.top_k=", "moe.ffn_hidden_size=",
                       "moe.shared_ffn_hidden_size=", "model.ffn_hidden_size=48"};
  const std::vector<Words> models = {{},
                                     {"moe.shared_ffn_hidden_size=0"},
                                     dense,
                                     {"moe.shared_ffn_hidden_size=0", "offload.modules=[\"attn_norm\"]",
                                      "offload.min_bytes=0"},
                                     {"device.kind=\"cuda\""},
                                     {"moe.shared_ffn_hidden_size=0", "device.kind=\"cuda\""}};
  const std::vector<std::pair<int64_t, Words>> layouts = {
      {1, {}},
      {2, {}},
      {2, {"parallel.optimizer_group=1"}},
      {2, {"parallel.bucket_mib=0"}},
      {2, {"parallel.tp=2"}},
      {2, {"parallel.cp=2"}},
      {2, {"parallel.cp=2", "parallel.context=\"alltoall\""}},
      {2, {"parallel.ep=2"}},
      {2, {"parallel.ep=2", "parallel.tp=2"}},
      {2, {"parallel.etp=2"}},
      {4, {"parallel.ep=2", "parallel.tp=2"}},
  };
  int num_refused = 0;
  for (const Words& model : models)
    for (const auto& [ranks, layout] : layouts) {
      const bool of_experts = !layout.empty() && (layout[0].find("ep=") != std::string::npos ||
                                                  layout[0].find("etp=") != std::string::npos);
      if (model == dense && of_experts) continue;
      Words sets = model;
      sets.insert(sets.end(), layout.begin(), layout.end());
      SCOPED_TRACE(fmt::format("{} on {} ranks", joined(sets), ranks));
      std::set<int> lanes;
      for (const program::Program& p : build_ranks(make_config(sets), ranks).programs)
        for (const program::Stage& s : p.stages) lanes.insert(s.lane);
      sets.push_back("device.in_order=true");
      std::string refusal;
      try {
        build_ranks(make_config(sets), ranks);
      } catch (const base::Error& e) {
        refusal = e.what();
      }
      EXPECT_EQ(refusal.empty(), lanes.size() > 1) << refusal << " with " << lanes.size() << " lanes";
      num_refused += !refusal.empty();
    }
  EXPECT_EQ(num_refused, 2);
}

}  // namespace
}  // namespace pleat::schedule
