#include "verify/rounding_bound.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "model/parameters.h"
#include "model/state.h"
#include "tensor/block_codes.h"
#include "train/learning_rate.h"
#include "verify/clip_factor.h"
#include "verify/compare.h"

namespace pleat::verify {
namespace {

constexpr double kSpread = 3;           // of a random sum of roundings over its expected length
constexpr double kPerturbation = 1e-7;  // of the weights in double, to see the conditioning
constexpr double kFarBelow = 0x1p-8;    // of the largest gradient of a block
constexpr double kBetween = 4;          // stages that round between two products

double distance(const Tensor& a, const Tensor& b) {
  Tensor d(a.size());
  for (size_t i = 0; i < a.size(); ++i) d[i] = a[i] - b[i];
  return length_of(d);
}

double relative(const Tensor& a, const Tensor& b) {
  const double d = distance(a, b);
  return d == 0 ? 0 : d / length_of(a);
}

// By how much of its largest size a step can differ from one whose states are not stored in between, when every
// state was stored `times` times.
double stored(const std::vector<model::StateSlot>& states, double arithmetic, size_t times) {
  double factor = 1;
  for (const model::StateSlot& s : states) {
    const double unit = s.rounding;
    if (s.power == 0 || unit <= arithmetic) continue;
    const double grown = std::pow(1 + unit, double(times)) - 1;
    factor *= s.power > 0 ? std::pow(1 + grown, s.power) : std::pow(std::max(0.0, 1 - grown), s.power);
  }
  return factor - 1;
}

const model::Parameter& parameter_named(const std::vector<model::Parameter>& table, const std::string& name) {
  const int found = model::find_parameter(table, name);
  PLEAT_CHECK(found >= 0, "there is no parameter {}", name);
  return table[static_cast<size_t>(found)];
}

// Largest possible change of an element of AdamW's step, given how far the gradients are apart.
class AdamBound {
 public:
  AdamBound(const config::Config& c, const Rounding& rounding, std::vector<model::StateSlot> states,
            const LayoutRun& a, const LayoutRun& b, const std::string& name)
      : config_(c), rounding_(rounding), states_(std::move(states)), a_(a), b_(b), name_(name) {
    for (const model::StateSlot& s : states_)
      if (s.coding != model::Coding::None) coded_ = true;
    for (size_t s = 0; s < a.steps.size(); ++s) {
      factor_a_.push_back(clip_factor(c, a, s, name));
      factor_b_.push_back(clip_factor(c, b, s, name));
    }
  }

  // After steps 0 .. last, element i.
  double after(size_t last, size_t i) const {
    double sum = 0;
    for (size_t s = 0; s <= last; ++s) {
      const double w = std::abs(a_.steps[s].weights.at(name_)[i]);
      // Weights are stored before the step too, where they were larger by what the step moves at most.
      const double lr = train::learning_rate(config_, static_cast<int64_t>(s) + 1);
      sum += lr * step(s, i) + 4 * rounding_.unit * (w + lr * largest_step(s));
    }
    return sum;
  }

 private:
  // No element of AdamW's step is larger, whatever the gradients.
  double largest_step(size_t last) const {
    const double t = double(last) + 1;
    double squares = 0;
    for (size_t age = 0; age <= last; ++age) {
      const double m = share(config_.optimizer.beta1, age, t);
      squares += m * m / share(config_.optimizer.beta2, age, t);
    }
    return std::sqrt(squares);
  }
  double step(size_t last, size_t i) const {
    const double beta1 = config_.optimizer.beta1, beta2 = config_.optimizer.beta2, t = double(last) + 1;
    const double most = largest_step(last);
    double squares = 0;
    for (size_t j = 0; j <= last; ++j) {
      const double g = gradient(a_, j, i);
      squares += share(beta2, last - j, t) * g * g;
    }
    double moved = 0;
    for (size_t j = 0; j <= last; ++j)
      moved += (share(beta1, last - j, t) + most * std::sqrt(share(beta2, last - j, t))) *
               std::abs(gradient(a_, j, i) - gradient(b_, j, i));
    // Rounding of the quotient and what it is made of; then of states that are stored narrower, in both runs.
    const double own = 16 * rounding_.update * most + 2 * stored(states_, rounding_.update, last) * most;
    if (coded_ && last > 0 && far_below_its_block(last, i)) return 2 * (most + own);
    return moved == 0 ? own : std::min(2 * most, 4 * moved / std::sqrt(squares)) + own;
  }
  // Codes of such an element are not rounded in proportion, and may tell nothing of it.
  bool far_below_its_block(size_t last, size_t i) const {
    const size_t begin = i / tensor::kCodeBlock * tensor::kCodeBlock;
    const auto largest = [&](size_t from, size_t to, const LayoutRun& run) {
      double out = 0;
      for (size_t j = 0; j < last; ++j)
        for (size_t k = from; k < to; ++k) out = std::max(out, std::abs(gradient(run, j, k)));
      return out;
    };
    const size_t end = std::min(begin + size_t{tensor::kCodeBlock}, a_.steps[0].gradients.at(name_).size());
    return largest(i, i + 1, a_) < kFarBelow * largest(begin, end, a_);
  }
  double gradient(const LayoutRun& run, size_t step, size_t i) const {
    return (&run == &a_ ? factor_a_ : factor_b_)[step] * run.steps[step].gradients.at(name_)[i];
  }
  static double share(double beta, size_t age, double t) {
    return (1 - beta) * std::pow(beta, double(age)) / (1 - std::pow(beta, t));
  }
  const config::Config& config_;
  const Rounding& rounding_;
  const std::vector<model::StateSlot> states_;
  bool coded_ = false;
  const LayoutRun &a_, &b_;
  std::vector<double> factor_a_, factor_b_;  // by which the gradient of a step was scaled
  const std::string& name_;
};

}  // namespace

Rounding float32_rounding(const config::Config& c) {
  const auto& m = c.model;
  const int64_t queries = m.num_heads * std::max(m.head_dim, m.v_head_dim);
  const int64_t longest =
      std::max({m.hidden_size, queries, m.ffn_hidden_size, c.moe.ffn_hidden_size, m.vocab_size,
                c.train.micro_batch * c.train.seq_len * c.train.num_microbatches});
  return {.terms = static_cast<double>(longest)};
}

Rounding bfloat16_rounding() { return {.unit = 0x1p-8, .terms = 2}; }

Conditioning conditioning(const config::Config& float64,
                          const std::function<LayoutRun(const config::Config&, const RunOptions&)>& run) {
  config::Config config = float64;
  config.optimizer.lr = config.optimizer.min_lr = 1e-300;  // the same weights at every step
  RunOptions moved;
  moved.weight = [](const model::Parameter& p, int64_t i, double initial) {
    uint64_t name = 0;
    for (const char letter : p.name) name = name * 131 + static_cast<unsigned char>(letter);
    const base::RandomStream random(name, base::RandomUse::Test, 0, 0);
    return initial * (1 + (random.uniform(static_cast<uint64_t>(i)) < 0.5 ? kPerturbation : -kPerturbation));
  };
  const LayoutRun a = run(config, {}), b = run(config, moved);
  PLEAT_CHECK(compare(a, b, model::make_parameters(config)).load_equal,
              "weights changed by {} route a token differently", kPerturbation);
  Conditioning out;
  for (size_t s = 0; s < a.steps.size(); ++s) {
    auto& of_step = out.emplace_back();
    for (const auto& [name, g] : a.steps[s].gradients)
      of_step[name] = relative(g, b.steps[s].gradients.at(name)) / kPerturbation;
    for (const auto& [name, x] : a.steps[s].taps)
      of_step[name] = relative(x, b.steps[s].taps.at(name)) / kPerturbation;
  }
  return out;
}

double carried(double conditioning) { return std::sqrt(3.0) * conditioning + 1; }

void BoundReport::add(const BoundReport& other) {
  if (fault.empty()) fault = other.fault;
  gradient = std::max(gradient, other.gradient);
  weight = std::max(weight, other.weight);
  gradient_share = std::max(gradient_share, other.gradient_share);
  later_share = std::max(later_share, other.later_share);
  weight_share = std::max(weight_share, other.weight_share);
  least_conditioning = std::min(least_conditioning, other.least_conditioning);
  most_conditioning = std::max(most_conditioning, other.most_conditioning);
}

BoundReport inside_bound(const config::Config& c, const Rounding& rounding, const Conditioning& kappa,
                         const LayoutRun& a, const LayoutRun& run) {
  BoundReport out;
  const auto say = [&](std::string what) {
    if (out.fault.empty()) out.fault = std::move(what);
  };
  if (!compare(a, run, model::make_parameters(c)).load_equal) {
    say("another routing: no bound holds");
    return out;
  }
  const std::vector<model::Parameter> table = model::make_parameters(c);
  // Of one product in both runs.
  const double sums = kSpread * std::sqrt(2.0 * (rounding.terms + kBetween)) * rounding.unit;
  double apart = 0;  // of the weights the step begins with
  for (size_t s = 0; s < a.steps.size(); ++s) {
    for (const auto& [name, g] : a.steps[s].gradients) {
      const double got = relative(g, run.steps[s].gradients.at(name)), condition = kappa[s].at(name),
                   allowed = carried(condition) * sums + condition * kSpread * apart;
      if (!(got <= allowed))
        say(fmt::format("step {}: the gradient of {} differs by {:.3g}, allowed {:.3g}", s + 1, name, got,
                        allowed));
      out.gradient = std::max(out.gradient, got);
      out.least_conditioning = std::min(out.least_conditioning, condition);
      out.most_conditioning = std::max(out.most_conditioning, condition);
      double& share = s == 0 ? out.gradient_share : out.later_share;
      if (got > 0) share = std::max(share, got / allowed);
    }
    for (const auto& [name, w] : a.steps[s].weights) {
      const Tensor& other = run.steps[s].weights.at(name);
      apart = std::max(apart, relative(w, other));
      const AdamBound bound(c, rounding, model::optimizer_of(c, parameter_named(table, name)).states, a, run,
                            name);
      for (size_t i = 0; i < w.size(); ++i) {
        if (w[i] == other[i]) continue;
        const double allowed = bound.after(s, i), got = std::abs(w[i] - other[i]);
        if (!(got <= allowed))
          say(fmt::format("step {}: {}[{}] differs by {:.3g}, allowed {:.3g}", s + 1, name, i, got, allowed));
        out.weight_share = std::max(out.weight_share, got / allowed);
      }
    }
  }
  out.weight = apart;
  return out;
}

}  // namespace pleat::verify
