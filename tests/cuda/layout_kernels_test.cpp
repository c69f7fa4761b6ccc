// Every stage of every rank of the layouts has a kernel on the GPU, or meets other ranks. Needs no GPU.
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "cuda/layout_support.h"
#include "kernels/cuda/bind.h"
#include "model/mesh_rules.h"
#include "schedule/build.h"
#include "schedule/ranks.h"

namespace pleat::schedule {
namespace {

using testing::layout_config;
using testing::LayoutCase;
using testing::Words;

struct Model {
  std::string name;
  Words sets;
};

const std::vector<Model>& models() {
  static const std::vector<Model> all = {
      {"plain", {}},
      {"latent attention",
       {"model.attention=\"mla\"", "model.q_lora_rank=16", "model.kv_lora_rank=16",
        "model.qk_nope_head_dim=8", "model.qk_rope_head_dim=8", "model.v_head_dim=8",
        "model.num_kv_heads=", "model.head_dim=", "model.qk_norm=", "moe.load_balancing=[\"bias\"]",
        "moe.aux_coef=[]", "moe.score=\"sigmoid\""}},
      {"capacity, padded", {"moe.capacity_factor=1.0", "moe.pad_to_capacity=true"}},
      {"tied", {"model.tie_embeddings=true"}},
      {"more tokens predicted", {"model.num_mtp_layers=1"}},
      {"recomputed", {"recompute.modules=[\"layer\"]"}},
      {"global losses",
       {"moe.load_balancing=[\"global_aux\"]", "moe.aux_coef=[0.01]", "moe.global_aux_form=\"exact\"",
        "train.order=\"gpipe\""}},
      {"sinks, biases", {"model.attention_sinks=true", "model.qkv_bias=true", "moe.router_bias=true"}},
  };
  return all;
}

// "kernel phase" of every stage without either, each once.
std::set<std::string> missing(const program::Program& p) {
  std::set<std::string> out;
  for (const program::Stage& s : p.stages) {
    const program::OpClass kind = class_of(s.op);
    if (kind != program::OpClass::Compute && kind != program::OpClass::Copy) continue;
    if (!kernels::find_cuda_kernel(kernel_of(s.op), s.phase))
      out.insert(fmt::format("{} {}", name_of(kernel_of(s.op)), name_of(s.phase)));
  }
  return out;
}

TEST(CudaLayouts, EveryStageHasAKernel) {
  int programs = 0;
  for (const LayoutCase& layout : testing::layout_cases())
    for (const Model& model : models())
      for (const char* dtype : {"float32", "bfloat16"}) {
        SCOPED_TRACE(fmt::format("{}, {}, {}", layout.name, model.name, dtype));
        // Padded experts always have the same rows: a budget for them is refused.
        if (layout.name == "EP2, rerun" && model.name == "capacity, padded") continue;
        const config::Config c = layout_config(layout, dtype, model.sets);
        if (!model::layout_faults(c, testing::place_of(c, layout.ranks).mesh).empty()) continue;  // refused
        const RankPrograms ranks = build_ranks(c, layout.ranks);
        const auto table = model::make_parameters(c);
        const auto expect_kernels = [&](const program::Program& p) {
          EXPECT_EQ(missing(p), std::set<std::string>()) << p.name;
          ++programs;
        };
        for (size_t i = 0; i < ranks.programs.size(); ++i) {
          expect_kernels(ranks.programs[i]);
          const BuildOptions options{model::RoutingUse::Choose, ranks.mesh, ranks.roles[i]};
          expect_kernels(build_evaluation(c, table, options));
          expect_kernels(build_gather(c, table, options));
        }
      }
  EXPECT_GT(programs, 1000);
}

}  // namespace
}  // namespace pleat::schedule
