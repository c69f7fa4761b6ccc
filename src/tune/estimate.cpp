#include "tune/estimate.h"

#include <algorithm>

#include "base/error.h"

namespace pleat::tune {
namespace {

Figures minus(const Figures& a, const Figures& b) { return plus(a, times(b, -1)); }

// In `part` of kTrialParts of its layers.
constexpr int kTrialParts = 4;
Candidate alone(Candidate out, const Space& space, size_t family, size_t choice, int part = kTrialParts) {
  out.choice[family] = choice;
  const size_t layers = space.families[family].choices[choice].layers.size();
  out.layers[family] = static_cast<int>((layers * static_cast<size_t>(part) + kTrialParts - 1) / kTrialParts);
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

// Of choices made of others, those that another one in fewer layers outdoes: as many bytes in less time.
std::vector<bool> outdone(const Family& family, const std::vector<Figures>& changes) {
  constexpr double kClearly = 0.95;
  std::vector<bool> out(family.choices.size(), false);
  size_t largest = 0;
  for (size_t i = 1; i < family.choices.size(); ++i)
    if (!family.choices[i].parts.empty() && changes[i].device < changes[largest].device) largest = i;
  for (size_t i = 1; i < family.choices.size(); ++i) {
    // The one that frees most of those with parts stays, whatever a guess says.
    if (family.choices[i].parts.empty() || changes[i].device >= 0 || i == largest) continue;
    for (size_t j = 1; j < family.choices.size() && !out[i]; ++j) {
      if (j == i || changes[j].device > changes[i].device) continue;
      out[i] = changes[j].step_ns * (changes[i].device / changes[j].device) < changes[i].step_ns * kClearly;
    }
  }
  return out;
}

}  // namespace

Figures plus(const Figures& a, const Figures& b) {
  return {a.step_ns + b.step_ns, a.device + b.device, a.host + b.host};
}

Figures times(const Figures& a, double n) { return {a.step_ns * n, a.device * n, a.host * n}; }

Figures figures_of(const Measured& m) {
  return {static_cast<double>(m.step_ns), static_cast<double>(m.device_bytes),
          static_cast<double>(m.fit.host_bytes)};
}

Estimate::Estimate(Space& space, const schedule::Ground& ground) : space_(space) {
  struct Trial {
    size_t family, choice;
    int part;
  };
  std::vector<Trial> trials;
  // What a microbatch keeps shows where it is large: the largest of which a step has two.
  const Candidate plain = without_any(space);
  Candidate large = plain;
  for (size_t f = 0; f < space.families.size(); ++f)
    for (size_t i = 1; i < space.families[f].choices.size(); ++i) {
      Candidate c = plain;
      c.choice[f] = i, c.layers[f] = static_cast<int>(space.families[f].choices[i].layers.size());
      const config::TrainConfig train = configured(space, c).train;
      if (train.num_microbatches >= 2 * space.num_ranks &&
          train.micro_batch > configured(space, large).train.micro_batch)
        large = c;
    }
  large_ = static_cast<double>(configured(space, large).train.micro_batch) /
           static_cast<double>(space.base.train.micro_batch);
  const auto start = [&](size_t f) { return space.families[f].per_microbatch ? large : plain; };
  std::vector<config::Config> configs = {configured(space, plain), configured(space, large)};
  for (size_t f = 0; f < space.families.size(); ++f)
    for (size_t i = 1; i < space.families[f].choices.size(); ++i) {
      if (!space.families[f].choices[i].parts.empty()) continue;
      for (int part = space.families[f].choices[i].beside ? 1 : kTrialParts; part <= kTrialParts; ++part) {
        trials.push_back({f, i, part});
        configs.push_back(configured(space, alone(start(f), space, f, i, part)));
      }
    }
  const std::vector<Measured> measured = measure_all(configs, space.num_ranks, ground);
  num_measured_ = static_cast<int64_t>(measured.size());
  base_ = measured[0];
  if (!base_.possible()) base::fail("{}", base_.refusal);
  if (!measured[1].possible()) base::fail("{}", measured[1].refusal);
  const auto base_of = [&](size_t f) {
    return figures_of(measured[space.families[f].per_microbatch ? 1 : 0]);
  };
  std::vector<At> refused;
  std::vector<std::vector<bool>> gone;
  for (const Family& family : space.families) {
    gone.emplace_back(family.choices.size(), false);
    changes_.emplace_back(family.choices.size());
  }
  for (size_t t = 0; t < trials.size(); ++t) {
    const Measured& m = measured[t + 2];
    const auto [f, i, part] = trials[t];
    if (m.possible() && part == kTrialParts)
      changes_[f][i] = minus(figures_of(m), base_of(f));
    else if (m.possible())
      times_[{f, space.families[f].choices[i].name}].push_back(
          {alone(plain, space, f, i, part).layers[f], static_cast<double>(m.step_ns) - base_of(f).step_ns});
    else if (part == kTrialParts) {
      gone[f][i] = true;
      if (space.families[f].choices[i].layers_key.empty()) refused.push_back({f, i});
    }
  }
  try_with_partners(ground, refused, gone);
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
        changes_[f][i] = plus(changes_[f][i], tune::times(c, times));
      }
      kept.push_back(changes_[f][i]);
    }
    changes_[f] = std::move(kept);
    erase_choices(family, gone[f]);
    const std::vector<bool> worse = outdone(family, changes_[f]);
    kept.clear();
    for (size_t i = 0; i < worse.size(); ++i)
      if (!worse[i]) kept.push_back(changes_[f][i]);
    changes_[f] = std::move(kept);
    erase_choices(family, worse);
    std::vector<double>& sizes = micro_batch_.emplace_back();
    std::vector<bool>& trains = trains_.emplace_back();
    for (size_t i = 0; i < family.choices.size(); ++i) {
      Candidate c = without_any(space);
      c.choice[f] = i;
      c.layers[f] = static_cast<int>(family.choices[i].layers.size());
      sizes.push_back(static_cast<double>(configured(space, c).train.micro_batch) /
                      static_cast<double>(space.base.train.micro_batch));
      trains.push_back(untrained(configured(space, c)).empty());
    }
  }
}

void Estimate::try_with_partners(const schedule::Ground& ground, const std::vector<At>& refused,
                                 std::vector<std::vector<bool>>& gone) {
  struct Pair {
    At one, partner;
  };
  const auto with = [&](Candidate c, At at) { return alone(std::move(c), space_, at.family, at.choice); };
  const auto measured = [&](const std::vector<Candidate>& candidates) {
    std::vector<config::Config> configs;
    for (const Candidate& c : candidates) configs.push_back(configured(space_, c));
    return measure_all(configs, space_.num_ranks, ground);
  };
  const auto each_other = [&](At one, const auto& call) {
    for (size_t g = 0; g < space_.families.size(); ++g)
      for (size_t j = 1; g != one.family && j < space_.families[g].choices.size(); ++j)
        if (!gone[g][j] && space_.families[g].choices[j].parts.empty()) call(At{g, j});
  };
  const Candidate plain = without_any(space_);
  std::vector<Pair> pairs;
  std::vector<Candidate> candidates;
  for (const At& one : refused)
    each_other(one, [&](At other) {
      pairs.push_back({one, other});
      candidates.push_back(with(with(plain, other), one));
    });
  const std::vector<Measured> both = measured(candidates);
  std::vector<Pair> first;  // of each choice that one makes possible
  for (size_t p = 0; p < pairs.size(); ++p) {
    if (!both[p].possible()) continue;
    std::vector<Name>& partners = partners_[name_of(pairs[p].one)];
    if (partners.empty()) first.push_back(pairs[p]);
    partners.push_back(name_of(pairs[p].partner));
    ++num_measured_;
  }
  for (const Pair& pair : first) {
    const At one = pair.one, partner = pair.partner;
    std::vector<At> others;
    candidates = {with(plain, partner), with(with(plain, partner), one)};
    each_other(one, [&](At other) {
      const Family& family = space_.families[other.family];
      if (other.family == partner.family || family.per_microbatch || family.fine) return;
      others.push_back(other);
      candidates.push_back(with(with(with(plain, partner), one), other));
    });
    const std::vector<Measured> taken = measured(candidates);
    num_measured_ += static_cast<int64_t>(taken.size());
    const Figures change = minus(figures_of(taken[1]), figures_of(taken[0]));
    changes_[one.family][one.choice] = change;
    for (size_t o = 0; o < others.size(); ++o) {
      if (!taken[o + 2].possible()) continue;
      const Figures sum = plus(figures_of(taken[1]), changes_[others[o].family][others[o].choice]);
      between_[{name_of(one), name_of(others[o])}] = minus(figures_of(taken[o + 2]), sum);
    }
  }
  // Last: beside each other they were not tried.
  for (const auto& [one, partner] : first) gone[one.family][one.choice] = false;
}

bool Estimate::has_partners(size_t family) const {
  return std::any_of(partners_.begin(), partners_.end(),
                     [&](const auto& needs) { return needs.first.first == family; });
}

bool Estimate::has(const Candidate& candidate, const Name& name) const {
  return space_.families[name.first].choices[candidate.choice[name.first]].name == name.second;
}

bool Estimate::is_possible(const Candidate& candidate) const {
  return std::all_of(partners_.begin(), partners_.end(), [&](const auto& needs) {
    return !has(candidate, needs.first) || std::any_of(needs.second.begin(), needs.second.end(),
                                                       [&](const Name& n) { return has(candidate, n); });
  });
}

bool Estimate::trains(const Candidate& candidate) const {
  for (size_t f = 0; f < candidate.choice.size(); ++f)
    if (!trains_[f][candidate.choice[f]]) return false;
  return true;
}

double Estimate::scale(const Candidate& candidate) const {
  double out = 1;
  for (size_t f = 0; f < candidate.choice.size(); ++f) out *= micro_batch_[f][candidate.choice[f]];
  return out;
}

Figures Estimate::change(const Candidate& candidate, size_t f, double scale) const {
  const Family& family = space_.families[f];
  Figures out = changes_[f][candidate.choice[f]];
  if (family.per_microbatch) out.device *= scale / large_, out.host *= scale / large_;
  const Choice& choice = family.choices[candidate.choice[f]];
  if (choice.layers.empty()) return out;
  const double share = static_cast<double>(candidate.layers[f]) / static_cast<double>(choice.layers.size());
  double step_ns = out.step_ns * share;
  // Beside the step time does not go by layers: between the two numbers of them that were measured.
  if (const auto known = times_.find({f, choice.name}); known != times_.end()) {
    std::pair<int, double> low{0, 0}, high{static_cast<int>(choice.layers.size()), out.step_ns};
    for (const auto& [layers, ns] : known->second) {
      if (layers <= candidate.layers[f] && layers > low.first) low = {layers, ns};
      if (layers >= candidate.layers[f] && layers < high.first) high = {layers, ns};
    }
    step_ns = high.first <= low.first
                  ? low.second
                  : low.second + (high.second - low.second) * (candidate.layers[f] - low.first) /
                                     (high.first - low.first);
  }
  return {step_ns, out.device * share, out.host * share};
}

Figures Estimate::of(const Candidate& candidate) const {
  Figures out = figures_of(base_);
  const double times = scale(candidate);
  for (size_t f = 0; f < candidate.choice.size(); ++f) out = plus(out, change(candidate, f, times));
  for (const auto& [both, more] : between_)
    if (has(candidate, both.first) && has(candidate, both.second)) out = plus(out, more);
  return out;
}

Figures Estimate::per_layer(const Candidate& candidate, size_t family) const {
  Candidate one = candidate;
  one.layers[family] = 1;
  return change(one, family, scale(candidate));
}

}  // namespace pleat::tune
