// The grid in float32. Pipelines and the choice of dispatcher change no bit. Everything else regroups sums,
// and what that may change is derived in docs/numerics.md section 9 from the unit roundoff, the longest sum
// and the conditioning of the model, which is measured here in double; the grid must stay inside. A spread
// sample here, every layout with PLEAT_GRID=all.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "verify/grid.h"
#include "verify/rounding_bound.h"

namespace pleat::verify {
namespace {

struct Reference {
  LayoutRun run;  // one rank in float32
  Conditioning conditioning;
};

Conditioning conditioning_of(const GridCase& c) {
  return conditioning(grid_config(c, "float64"),
                      [&](const config::Config& config, const RunOptions& options) {
                        return reference_of(c, config, options);
                      });
}

GridCase flat_of(GridCase c) {
  c.mesh.pp = c.mesh.vpp = 1;
  c.mesh.dispatcher = model::Dispatcher::AllToAll;
  return c;
}

struct Family {
  GridCase flat;  // no pipeline, all-to-all
  std::vector<GridCase> members;
};

// Layouts that must have the same bits, by what makes them differ from others.
std::map<std::string, Family> families() {
  std::map<std::string, Family> out;
  const std::vector<GridCase> all = grid();
  for (size_t i = 0; i < all.size(); ++i) {
    if (!refusal(all[i]).empty() || (!whole_grid() && i % 53 != 11)) continue;
    const GridCase flat = flat_of(all[i]);
    // Groups of owners that meet a gradient in another order give other bits.
    Family& f = out[fmt::format("{} {} {} {}", flat.name(), static_cast<int>(flat.mesh.context),
                                flat.mesh.optimizer_group, grid_config(all[i], "float32").model.num_layers)];
    f.flat = flat;
    f.members.push_back(all[i]);
  }
  return out;
}

TEST(Grid, Float32IsBitwiseOrInsideTheBound) {
  RunOptions each_step;
  each_step.weights_each_step = true;
  std::map<std::string, Reference> references;
  int layouts = 0, runs = 0, bitwise = 0, regrouped = 0;
  size_t looked_at = 0;
  BoundReport worst;
  const auto all = families();
  for (const auto& [key, family] : all) {
    // Eight stages need eight layers, with a pipeline or without.
    const config::Config config = grid_config(family.members.front(), "float32");
    const GridCase& flat = family.flat;
    GridCase like = flat;  // one rank of it
    like.mesh.pp = family.members.front().mesh.pp, like.mesh.vpp = family.members.front().mesh.vpp;
    const std::string reference_key =
        fmt::format("{} {} {} {} {}", flat.latent, flat.num_microbatches, config.model.num_layers, flat.pad,
                    flat.pad ? fmt::format("{} {}", flat.mesh.tp, flat.mesh.cp) : "");
    if (!references.contains(reference_key))
      references[reference_key] = {reference_of(like, config, each_step), conditioning_of(like)};
    SCOPED_TRACE(flat.name());
    const LayoutRun base = run_layout(config, flat.mesh, {}, each_step);
    if (flat.mesh.world() > 1) {
      const Reference& one = references[reference_key];
      const BoundReport report =
          inside_bound(config, float32_rounding(config), one.conditioning, one.run, base);
      EXPECT_EQ(report.fault, "");
      worst.add(report);
      ++regrouped;
    }
    for (const GridCase& c : family.members) {
      SCOPED_TRACE(c.name());
      ++layouts;
      for (const auto dispatcher : {model::Dispatcher::AllToAll, model::Dispatcher::AllGather}) {
        model::Mesh mesh = c.mesh;
        mesh.dispatcher = dispatcher;
        const bool base_itself = mesh.pp == 1 && dispatcher == flat.mesh.dispatcher;
        const bool no_experts_apart = mesh.ep * mesh.etp == 1 && dispatcher == model::Dispatcher::AllGather;
        if (base_itself || no_experts_apart) continue;
        const LayoutRun run = run_layout(config, mesh, even_roles(config, mesh), {});
        const bool same = compare(base, run, model::make_parameters(config)).bitwise;
        EXPECT_TRUE(same) << (dispatcher == model::Dispatcher::AllGather ? "allgather" : "alltoall");
        ++runs;
        bitwise += same;
      }
    }
    if (whole_grid() && ++looked_at % 50 == 0)
      fmt::print("{} of {} families, {} of {} runs bitwise\n", looked_at, all.size(), bitwise, runs),
          std::fflush(stdout);
  }
  EXPECT_GT(bitwise, 10);
  EXPECT_GT(regrouped, 10);
  if (whole_grid())
    fmt::print(
        "float32: {} layouts; {} of {} runs with a pipeline or the other dispatcher bitwise equal to none; "
        "{} "
        "ways to regroup sums against one rank: gradients differ by {:.2g}, weights by {:.2g}; shares of the "
        "bounds: first gradients {:.2g}, later ones {:.2g}, weights {:.2g}; conditioning {:.2g} to {:.2g}\n",
        layouts, bitwise, runs, regrouped, worst.gradient, worst.weight, worst.gradient_share,
        worst.later_share, worst.weight_share, worst.least_conditioning, worst.most_conditioning);
}

}  // namespace
}  // namespace pleat::verify
