// Every distinct scalar counts once in the gradient norm, those of experts too, however many copies there are;
// gradients of experts do not grow with the number of expert ranks, nor with groups of one rank.
#include <cmath>

#include "model/shard.h"
#include "verify/verify_support.h"

namespace pleat::verify {
namespace {

// All gradients 0 but for one element of a norm that everybody holds and one of every distinct part of the
// experts; each rank holds its part of the sum.
double one_if_chosen(const model::Mesh& mesh, const model::Parameter& p, int64_t element) {
  if (element != 0 || (p.name != "final_norm.weight" && p.name != "layers.0.experts.up.weight")) return 0;
  return 1.0 / static_cast<double>(mesh.size(model::ownership(p, mesh).reduction));
}

TEST(GradientNorm, NormCountsEveryDistinctScalarOnce) {
  const config::Config c = small_model({"train.num_microbatches=8"});
  int layouts = 0;
  for (const int world : {2, 4, 8})
    for (int tp = 1; tp <= world; tp *= 2)
      for (int etp = 1; etp <= world; etp *= 2)
        for (int ep = 1; ep * etp <= world; ep *= 2) {
          const model::Mesh mesh = mesh_of({tp, 1, world / tp, 1, ep, etp});
          SCOPED_TRACE(text_of(mesh));
          RunOptions options;
          options.num_steps = 1;
          options.gradient = [&](const model::Parameter& p, const runtime::RankPlace&, int64_t i) {
            return one_if_chosen(mesh, p, i);
          };
          const StepResults step = run_on(c, mesh, options).steps[0];
          const double golden = std::sqrt(1.0 + ep * etp);
          EXPECT_DOUBLE_EQ(step.norm, golden);
          EXPECT_DOUBLE_EQ(step.clip, 0.5 / golden);
          if (world == 2 && tp == 2 && ep == 2) {
            EXPECT_NEAR(step.norm, 1.7320508, 1e-7);
          }
          ++layouts;
        }
  EXPECT_EQ(layouts, 64);
}

TEST(GradientNorm, SkippedNormIsNoticed) {
  const model::Mesh mesh = mesh_of({2, 1, 1, 1, 2, 1});
  RunOptions options;
  options.num_steps = 1;
  options.gradient = [&](const model::Parameter& p, const runtime::RankPlace&, int64_t i) {
    return i == 0 ? 1.0 / static_cast<double>(mesh.size(model::ownership(p, mesh).reduction)) : 0;
  };
  const double whole = run_on(small_model(), mesh, options).steps[0].norm;
  options.fault = Fault::SkipNorm;
  EXPECT_LT(run_on(small_model(), mesh, options).steps[0].norm, whole - 1e-3);
}

struct Division {
  model::Mesh mesh;
  int microbatches;
};

// Every division of up to 8 ranks, groups of one rank included, whose replicas share the microbatches.
std::vector<Division> divisions() {
  std::vector<Division> out;
  for (const int microbatches : {1, 2, 4})
    for (const int ep : {1, 2, 4})
      for (const int tp : {1, 2})
        for (const int etp : {1, 2})
          for (const int edp : {1, 2}) {
            const int world = ep * etp * edp;
            if (world > 8 || world % tp != 0 || microbatches % (world / tp) != 0) continue;
            out.push_back({mesh_of({tp, 1, world / tp, 1, ep, etp}), microbatches});
          }
  return out;
}

TEST(ExpertGradients, GradientsAndClippedUpdateEqualOneRanks) {
  std::map<int, LayoutRun> references;
  RunOptions options;
  options.num_steps = 1;
  int layouts = 0;
  for (const Division& at : divisions()) {
    const config::Config c =
        small_model({"train.micro_batch=2", fmt::format("train.num_microbatches={}", at.microbatches),
                     "train.seq_len=8", "moe.shared_ffn_hidden_size=8", "optimizer.clip=0.1"});
    SCOPED_TRACE(text_of(at.mesh) + fmt::format(", {} microbatches", at.microbatches));
    if (!references.contains(at.microbatches)) references[at.microbatches] = run_on(c, {}, options);
    const LayoutRun &reference = references[at.microbatches], run = run_on(c, at.mesh, options);
    ASSERT_LT(reference.steps[0].clip, 1);  // the step is clipped
    for (const auto& [name, gradient] : reference.steps[0].gradients) {
      ASSERT_GT(length_of(gradient), 0) << name;
      EXPECT_NEAR(length_of(run.steps[0].gradients.at(name)) / length_of(gradient), 1, 1e-10) << name;
    }
    EXPECT_EQ(difference(c, reference, run), "");
    ++layouts;
  }
  EXPECT_EQ(layouts, 33);
}

}  // namespace
}  // namespace pleat::verify
