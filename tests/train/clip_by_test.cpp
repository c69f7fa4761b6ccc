// optimizer.clip_by against AdamW written down in float64: which norm bounds a gradient.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/step_inputs.h"
#include "schedule/build.h"
#include "train/train_support.h"

namespace pleat::train::testing {
namespace {

double length(const std::vector<double>& v) {
  double sum = 0;
  for (const double x : v) sum += x * x;
  return std::sqrt(sum);
}

struct Seen {
  double worst = 0;          // of any weight against the reference
  int scaled = 0, kept = 0;  // tensors and steps
};

Seen three_steps(const std::string& clip_by, double clip) {
  const config::Config c =
      small_config("", {"optimizer.clip_by=\"" + clip_by + "\"", "optimizer.clip=" + std::to_string(clip),
                        "optimizer.weight_decay=0"});
  runtime::Programs programs(c, train_only());
  programs.initialize();
  Runtime bound(with_gradients_kept(schedule::build_training_step(c, programs.table())), 1);
  copy_state(programs, bound);
  std::map<std::string, std::vector<double>> m, v;
  const config::OptimizerConfig& o = c.optimizer;
  double previous = 0;
  Seen seen;
  for (int64_t step = 1; step <= 3; ++step) {
    const Snapshot before = snapshot(bound);
    write_random_batch(bound.executor(), c, step);
    runtime::write_hyper(bound.executor(), 0.05, step, previous);
    bound.executor().run();
    const Snapshot after = snapshot(bound), grads = gradients(bound.program(), bound.executor());
    double squares = 0;
    for (const auto& [name, bytes] : grads) squares += std::pow(length(doubles_of(bytes)), 2);
    const double norm = std::sqrt(squares);
    const double* said = static_cast<const double*>(bound.executor().data("grad_scale"));
    EXPECT_NEAR(said[0], norm, 1e-12 * norm);
    EXPECT_EQ(said[1], 1) << "the result is of all gradients, and these scale none by it";
    for (const model::Parameter& p : programs.table()) {
      if (!p.tied_to.empty()) continue;
      const std::vector<double> w = doubles_of(before.at(p.name)), now = doubles_of(after.at(p.name)),
                                g = doubles_of(grads.at(p.name + ".grad"));
      const double by = clip_by == "tensor" ? length(g) : previous;
      const double factor = by > clip ? clip / by : 1;
      ++(factor < 1 ? seen.scaled : seen.kept);
      m[p.name].resize(w.size()), v[p.name].resize(w.size());
      for (size_t i = 0; i < w.size(); ++i) {
        const double x = g[i] * factor;
        double &mi = m[p.name][i], &vi = v[p.name][i];
        mi = o.beta1 * mi + (1 - o.beta1) * x, vi = o.beta2 * vi + (1 - o.beta2) * x * x;
        const double m_hat = mi / (1 - std::pow(o.beta1, double(step))),
                     v_hat = vi / (1 - std::pow(o.beta2, double(step)));
        seen.worst =
            std::max(seen.worst, std::abs(w[i] - 0.05 * m_hat / (std::sqrt(v_hat) + o.eps) - now[i]));
      }
    }
    previous = norm;
  }
  return seen;
}

}  // namespace

TEST(ClipBy, TensorScalesEachByItsOwnNorm) {
  const Seen seen = three_steps("tensor", 0.3);
  EXPECT_LT(seen.worst, 1e-12);
  EXPECT_GT(seen.scaled, 3);
  EXPECT_GT(seen.kept, 3);
}

TEST(ClipBy, PreviousScalesByTheStepBefore) {
  const Seen seen = three_steps("previous", 0.3);
  EXPECT_LT(seen.worst, 1e-12);
  EXPECT_GT(seen.scaled, 0);
  EXPECT_EQ(seen.kept, seen.scaled / 2) << "the first step alone is not scaled";
}

}  // namespace pleat::train::testing
