#include "tune/estimate.h"

#include <algorithm>

#include "base/error.h"

namespace pleat::tune {
namespace {

Figures minus(const Figures& a, const Figures& b) {
  return {a.step_ns - b.step_ns, a.device - b.device, a.host - b.host};
}

Candidate alone(const Space& space, size_t family, size_t choice) {
  Candidate out = without_any(space);
  out.choice[family] = choice;
  out.layers[family] = static_cast<int>(space.families[family].choices[choice].layers.size());
  return out;
}

// Without the choices of `gone`, and without those that are made of them.
void erase_choices(Family& family, const std::vector<bool>& gone) {
  std::vector<size_t> place(family.choices.size(), SIZE_MAX);
  std::vector<Choice> kept;
  for (size_t i = 0; i < family.choices.size(); ++i) {
    Choice& c = family.choices[i];
    if (gone[i] || std::any_of(c.parts.begin(), c.parts.end(), [&](size_t p) { return gone[p]; })) continue;
    place[i] = kept.size();
    kept.push_back(std::move(c));
    for (size_t& part : kept.back().parts) part = place[part];
  }
  family.choices = std::move(kept);
}

}  // namespace

Figures figures_of(const Measured& m) {
  return {static_cast<double>(m.step_ns), static_cast<double>(m.device_bytes),
          static_cast<double>(m.fit.host_bytes)};
}

Estimate::Estimate(Space& space, const schedule::Ground& ground) : space_(space) {
  struct Trial {
    size_t family, choice;
  };
  std::vector<Trial> trials;
  std::vector<config::Config> configs = {configured(space, without_any(space))};
  for (size_t f = 0; f < space.families.size(); ++f)
    for (size_t i = 1; i < space.families[f].choices.size(); ++i) {
      if (!space.families[f].choices[i].parts.empty()) continue;
      trials.push_back({f, i});
      configs.push_back(configured(space, alone(space, f, i)));
    }
  const std::vector<Measured> measured = measure_all(configs, space.num_ranks, ground);
  num_measured_ = static_cast<int64_t>(measured.size());
  base_ = measured[0];
  if (!base_.possible()) base::fail("{}", base_.refusal);
  const Figures base = figures_of(base_);
  std::vector<std::vector<bool>> gone;
  for (const Family& family : space.families) {
    gone.emplace_back(family.choices.size(), false);
    changes_.emplace_back(family.choices.size());
  }
  for (size_t t = 0; t < trials.size(); ++t) {
    const Measured& m = measured[t + 1];
    if (m.possible())
      changes_[trials[t].family][trials[t].choice] = minus(figures_of(m), base);
    else
      gone[trials[t].family][trials[t].choice] = true;
  }
  for (size_t f = 0; f < space.families.size(); ++f) {
    Family& family = space.families[f];
    std::vector<Figures> kept;
    for (size_t i = 0; i < family.choices.size(); ++i) {
      const std::vector<size_t>& parts = family.choices[i].parts;
      if (gone[f][i] || std::any_of(parts.begin(), parts.end(), [&](size_t p) { return gone[f][p]; }))
        continue;
      for (const size_t p : parts) {
        const double share = static_cast<double>(family.choices[i].layers.size()) /
                             static_cast<double>(std::max<size_t>(1, family.choices[p].layers.size()));
        const Figures& c = changes_[f][p];
        // A part may be in fewer layers than the whole: what it frees there is all it can.
        const double times = std::min(1.0, share);
        changes_[f][i].step_ns += c.step_ns * times;
        changes_[f][i].device += c.device * times;
        changes_[f][i].host += c.host * times;
      }
      kept.push_back(changes_[f][i]);
    }
    changes_[f] = std::move(kept);
    erase_choices(family, gone[f]);
    std::vector<double>& sizes = micro_batch_.emplace_back();
    for (size_t i = 0; i < family.choices.size(); ++i) {
      Candidate c = without_any(space);
      c.choice[f] = i;
      c.layers[f] = static_cast<int>(family.choices[i].layers.size());
      sizes.push_back(static_cast<double>(configured(space, c).train.micro_batch) /
                      static_cast<double>(space.base.train.micro_batch));
    }
  }
}

double Estimate::scale(const Candidate& candidate) const {
  double out = 1;
  for (size_t f = 0; f < candidate.choice.size(); ++f) out *= micro_batch_[f][candidate.choice[f]];
  return out;
}

Figures Estimate::change(const Candidate& candidate, size_t f, double scale) const {
  const Family& family = space_.families[f];
  Figures out = changes_[f][candidate.choice[f]];
  if (family.per_microbatch) out.device *= scale, out.host *= scale;
  const Choice& choice = family.choices[candidate.choice[f]];
  if (choice.layers.empty()) return out;
  const double share = static_cast<double>(candidate.layers[f]) / static_cast<double>(choice.layers.size());
  return {out.step_ns * share, out.device * share, out.host * share};
}

Figures Estimate::of(const Candidate& candidate) const {
  Figures out = figures_of(base_);
  const double times = scale(candidate);
  for (size_t f = 0; f < candidate.choice.size(); ++f) {
    const Figures c = change(candidate, f, times);
    out.step_ns += c.step_ns, out.device += c.device, out.host += c.host;
  }
  return out;
}

Figures Estimate::per_layer(const Candidate& candidate, size_t family) const {
  Candidate one = candidate;
  one.layers[family] = 1;
  return change(one, family, scale(candidate));
}

}  // namespace pleat::tune
