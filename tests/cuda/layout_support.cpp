#include "cuda/layout_support.h"

#include "layout/from_config.h"
#include "schedule/ranks.h"
#include "support/small_models.h"

namespace pleat::testing {

const std::vector<LayoutCase>& layout_cases() {
  static const std::vector<LayoutCase> all = {
      {"EP2", 2, {"parallel.ep=2"}},
      {"EP2 allgather", 2, {"parallel.ep=2", "parallel.dispatcher=\"allgather\""}},
      {"EP2, rerun", 2, {"parallel.ep=2", "moe.token_budget=1.05", "moe.overflow=\"rerun\""}},
      {"TP2", 2, {"parallel.tp=2"}},
      {"PP2", 2, {"parallel.pp=2"}},
      {"PP2 VPP2", 2, {"parallel.pp=2", "parallel.vpp=2"}},
      {"CP2 allgather", 2, {"parallel.cp=2"}},
      {"CP2 alltoall", 2, {"parallel.cp=2", "parallel.context=\"alltoall\""}},
      {"CP2 ring", 2, {"parallel.cp=2", "parallel.context=\"ring\""}},
      {"EP2 on TP2", 2, {"parallel.ep=2", "parallel.tp=2"}},
      {"EP2 x TP2", 4, {"parallel.ep=2", "parallel.tp=2"}},
      {"ETP2", 2, {"parallel.etp=2"}},
      {"EP2 x ETP2", 4, {"parallel.ep=2", "parallel.etp=2"}},
      {"DP2", 2, {}},
      {"DP2, a parameter at a time", 2, {"parallel.bucket_mib=0"}},
      {"DP4, two owners", 4, {"parallel.optimizer_group=2"}},
      {"EP4", 4, {"parallel.ep=4"}},
      {"PP2 x EP2", 4, {"parallel.pp=2", "parallel.ep=2"}},
      {"CP4 ring", 4, {"parallel.cp=4", "parallel.context=\"ring\""}},
      {"TP2 x CP2 ring", 4, {"parallel.tp=2", "parallel.cp=2", "parallel.context=\"ring\""}},
  };
  return all;
}

config::Config layout_config(const LayoutCase& layout, const std::string& dtype, const Words& sets) {
  static const std::string model = kLayoutModel + R"(
model.vocab_size = 80
model.num_layers = 4
model.num_kv_heads = 4
model.head_dim = 8
model.qk_norm = true
model.ffn_hidden_size = 48
moe.load_balancing = ["aux", "seq_aux"]
moe.aux_coef = [0.02, 0.03]
moe.z_coef = 0.002
optimizer.lr = 1e-4
optimizer.clip = 0.5
device.kind = "cuda"
)";
  Words all = {"model.dtype=\"" + dtype + "\""};
  all.insert(all.end(), layout.sets.begin(), layout.sets.end());
  all.insert(all.end(), sets.begin(), sets.end());
  return config::resolve(config::parse(model, all, "layout.toml"));
}

Placed place_of(const config::Config& config, int ranks) {
  Placed out;
  out.mesh = schedule::mesh_of(config, layout::Layout(layout::sizes_of(config, ranks)));
  if (config.parallel.pp > 1) out.roles = schedule::roles_of(config);
  return out;
}

}  // namespace pleat::testing
