// The grid in float32. Pipelines and the choice of dispatcher change no bit. Everything else regroups sums,
// and what that may change is derived in docs/numerics.md section 9 from the unit roundoff, the longest sum
// and the conditioning of the model, which is measured here in double; the grid must stay inside. A spread
// sample here, every layout with PLEAT_GRID=all.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/rng.h"
#include "train/learning_rate.h"
#include "verify/grid.h"

namespace pleat::verify {
namespace {

constexpr double kRoundoff = 0x1p-24;
constexpr double kSpread = 3;           // of a random sum of roundings over its expected length
constexpr double kPerturbation = 1e-7;  // of the weights in double, to see the conditioning

double length(const Tensor& t) {
  double sum = 0;
  for (const double x : t) sum += x * x;
  return std::sqrt(sum);
}

double distance(const Tensor& a, const Tensor& b) {
  Tensor d(a.size());
  for (size_t i = 0; i < a.size(); ++i) d[i] = a[i] - b[i];
  return length(d);
}

double relative(const Tensor& a, const Tensor& b) {
  const double d = distance(a, b);
  return d == 0 ? 0 : d / length(a);
}

int64_t longest_sum(const config::Config& c) {
  const auto& m = c.model;
  const int64_t queries = m.num_heads * std::max(m.head_dim, m.v_head_dim);
  return std::max({m.hidden_size, queries, m.ffn_hidden_size, c.moe.ffn_hidden_size, m.vocab_size,
                   c.train.micro_batch * c.train.seq_len * c.train.num_microbatches});
}

// How much of a relative change of every weight arrives in the gradient of each parameter, per step's batch.
std::vector<std::map<std::string, double>> conditioning(const GridCase& c) {
  config::Config config = grid_config(c, "float64");
  config.optimizer.lr = config.optimizer.min_lr = 1e-300;  // the same weights at every step
  RunOptions moved;
  moved.weight = [](const model::Parameter& p, int64_t i, double initial) {
    uint64_t name = 0;
    for (const char letter : p.name) name = name * 131 + static_cast<unsigned char>(letter);
    const base::RandomStream random(name, base::RandomUse::Test, 0, 0);
    return initial * (1 + (random.uniform(static_cast<uint64_t>(i)) < 0.5 ? kPerturbation : -kPerturbation));
  };
  const LayoutRun a = reference_of(c, config), b = reference_of(c, config, moved);
  EXPECT_TRUE(compare(a, b, model::make_parameters(config)).load_equal);
  std::vector<std::map<std::string, double>> out;
  for (size_t s = 0; s < a.steps.size(); ++s) {
    auto& of_step = out.emplace_back();
    for (const auto& [name, g] : a.steps[s].gradients)
      of_step[name] = relative(g, b.steps[s].gradients.at(name)) / kPerturbation;
  }
  return out;
}

struct Reference {
  LayoutRun run;  // one rank in float32
  std::vector<std::map<std::string, double>> conditioning;
};

struct Worst {
  double gradient = 0, weight = 0;                               // difference
  double gradient_share = 0, later_share = 0, weight_share = 0;  // of what is allowed
  double least_conditioning = 1e300, most_conditioning = 0;
};

// Largest possible change of an element of AdamW's step, given how far the gradients are apart.
class AdamBound {
 public:
  AdamBound(const config::Config& c, const LayoutRun& a, const LayoutRun& b, const std::string& name)
      : config_(c), a_(a), b_(b), name_(name) {}

  // After steps 0 .. last, element i.
  double after(size_t last, size_t i) const {
    double sum = 0;
    for (size_t s = 0; s <= last; ++s) {
      const double w = std::abs(a_.steps[s].weights.at(name_)[i]);
      sum += train::learning_rate(config_, static_cast<int64_t>(s) + 1) * step(s, i) + 4 * kRoundoff * w;
    }
    return sum;
  }

 private:
  double step(size_t last, size_t i) const {
    const double beta1 = config_.optimizer.beta1, beta2 = config_.optimizer.beta2, t = double(last) + 1;
    double squares = 0, most = 0;
    for (size_t j = 0; j <= last; ++j) {
      const double m = share(beta1, last - j, t), v = share(beta2, last - j, t), g = gradient(a_, j, i);
      squares += v * g * g;
      most += m * m / v;
    }
    most = std::sqrt(most);
    double moved = 0;
    for (size_t j = 0; j <= last; ++j)
      moved += (share(beta1, last - j, t) + most * std::sqrt(share(beta2, last - j, t))) *
               std::abs(gradient(a_, j, i) - gradient(b_, j, i));
    // Rounding of the moments and of the quotient itself.
    const double own = 16 * kRoundoff * most;
    return moved == 0 ? own : std::min(2 * most, 4 * moved / std::sqrt(squares)) + own;
  }
  double gradient(const LayoutRun& run, size_t step, size_t i) const {
    return run.steps[step].clip * run.steps[step].gradients.at(name_)[i];
  }
  static double share(double beta, size_t age, double t) {
    return (1 - beta) * std::pow(beta, double(age)) / (1 - std::pow(beta, t));
  }
  const config::Config& config_;
  const LayoutRun &a_, &b_;
  const std::string& name_;
};

void expect_inside(const config::Config& c, const Reference& one, const LayoutRun& run, Worst& worst) {
  const LayoutRun& a = one.run;
  ASSERT_TRUE(compare(a, run, model::make_parameters(c)).load_equal) << "another routing: no bound holds";
  const double sums = kSpread * std::sqrt(6.0 * double(longest_sum(c) + 4)) * kRoundoff;
  double apart = 0;  // of the weights the step begins with
  for (size_t s = 0; s < a.steps.size(); ++s) {
    for (const auto& [name, g] : a.steps[s].gradients) {
      const double got = relative(g, run.steps[s].gradients.at(name)),
                   allowed = one.conditioning[s].at(name) * (sums + kSpread * apart);
      EXPECT_LE(got, allowed) << "step " << s + 1 << " " << name;
      worst.gradient = std::max(worst.gradient, got);
      worst.least_conditioning = std::min(worst.least_conditioning, one.conditioning[s].at(name));
      worst.most_conditioning = std::max(worst.most_conditioning, one.conditioning[s].at(name));
      if (got > 0)
        (s == 0 ? worst.gradient_share : worst.later_share) =
            std::max(s == 0 ? worst.gradient_share : worst.later_share, got / allowed);
    }
    for (const auto& [name, w] : a.steps[s].weights) {
      const Tensor& other = run.steps[s].weights.at(name);
      apart = std::max(apart, relative(w, other));
      const AdamBound bound(c, a, run, name);
      for (size_t i = 0; i < w.size(); ++i) {
        if (w[i] == other[i]) continue;
        const double allowed = bound.after(s, i), got = std::abs(w[i] - other[i]);
        if (got > allowed) {
          ADD_FAILURE() << "step " << s + 1 << " " << name << "[" << i << "] " << got << " > " << allowed;
          return;
        }
        worst.weight_share = std::max(worst.weight_share, got / allowed);
      }
    }
  }
  worst.weight = std::max(worst.weight, apart);
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
  Worst worst;
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
      references[reference_key] = {reference_of(like, config, each_step), conditioning(like)};
    SCOPED_TRACE(flat.name());
    const LayoutRun base = run_layout(config, flat.mesh, {}, each_step);
    if (flat.mesh.world() > 1) {
      expect_inside(config, references[reference_key], base, worst);
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
