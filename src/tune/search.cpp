#include "tune/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <queue>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"

namespace pleat::tune {
namespace {

// Estimates are off by a little: what is guessed to be slower by less is measured as well.
constexpr double kTolerance = 0.005;
// Of memory, where nothing with the same activations was measured, and where something was.
constexpr double kUnsureGuess = 0.03, kSureGuess = 0.003;
// Of the host's.
constexpr double kUnsureHost = 0.01;
// Of a device where nothing was found.
constexpr double kVeryUnsureGuess = 0.15;
// Measured together; the number of cores does not change what is.
constexpr size_t kBatch = 4;
// Parts of its layers that a technique of layers is tried in beside another, whose number is then solved for.
constexpr int kSteps = 4;
constexpr size_t kMostNearest = 4;
// Measured for rows beyond the best one.
constexpr int kSpare = 24;
// Measured for what stands beside the answer: the best of those that round least, the best without a limit.
constexpr int64_t kAside = 48;
// The same of what cannot be trained yet.
constexpr int64_t kAsideNotYet = 24;
// Rows that are worse than the best by more are of no interest.
constexpr double kFar = 1.5;
// The worth of rounding to whoever would rather have none.
constexpr double kRatherNot = 10;
// Rows of what cannot be trained yet.
constexpr size_t kNotYet = 3;

struct Limits {
  double device = std::numeric_limits<double>::infinity(), host = std::numeric_limits<double>::infinity();
};

bool sets_all_of(const Choice& more, const Choice& less) {
  return !less.sets.empty() && std::all_of(less.sets.begin(), less.sets.end(), [&](const Setting& s) {
    return std::any_of(more.sets.begin(), more.sets.end(),
                       [&](const Setting& t) { return t.key == s.key && t.value == s.value; });
  });
}

// All combinations of choices by number. Of techniques of layers, the last one that is chosen has its number of layers
// solved for, the others stand at a few parts.
class Combinations {
 public:
  explicit Combinations(const Space& space) : space_(space) {
    size_t last_layered = SIZE_MAX;
    for (size_t f = 0; f < space.families.size(); ++f)
      if (is_layered(f)) last_layered = f;
    for (size_t f = 0; f < space.families.size(); ++f) {
      std::vector<Option>& options = options_.emplace_back();
      for (size_t i = 0; i < space.families[f].choices.size(); ++i) {
        const bool layered = !space.families[f].choices[i].layers.empty();
        for (int step = 1; step <= (layered && f != last_layered ? kSteps : 1); ++step)
          options.push_back({i, step});
      }
      size_ *= options.size();
    }
  }

  size_t size() const { return size_; }
  struct Combination {
    Candidate candidate;
    size_t solved = SIZE_MAX;  // the family whose number of layers is free; its layers are 0 here
    bool counts = true;        // false: the same as another
  };
  Combination at(size_t index) const {
    Combination out;
    out.candidate = without_any(space_);
    std::vector<int> step(options_.size(), 1);
    for (size_t f = 0; f < options_.size(); ++f) {
      const Option& o = options_[f][index % options_[f].size()];
      index /= options_[f].size();
      out.candidate.choice[f] = o.choice;
      const size_t layers = space_.families[f].choices[o.choice].layers.size();
      if (layers == 0) continue;
      step[f] = o.step;
      out.candidate.layers[f] =
          static_cast<int>((layers * static_cast<size_t>(o.step) + kSteps - 1) / kSteps);
      out.solved = f;
    }
    if (out.solved == SIZE_MAX) return out;
    out.counts = step[out.solved] == 1;
    out.candidate.layers[out.solved] = 0;
    return out;
  }

 private:
  struct Option {
    size_t choice = 0;
    int step = 1;
  };
  bool is_layered(size_t f) const {
    return std::any_of(space_.families[f].choices.begin(), space_.families[f].choices.end(),
                       [](const Choice& c) { return !c.layers.empty(); });
  }
  const Space& space_;
  std::vector<std::vector<Option>> options_;
  size_t size_ = 1;
};

class Search {
 public:
  Search(const Space& space, const Estimate& estimate, const schedule::Ground& ground,
         const SearchOptions& options)
      : space_(space), estimate_(estimate), ground_(ground), options_(options), combinations_(space) {
    for (size_t f = 0; f < space.families.size(); ++f) {
      resizes_.push_back(estimate.resizes(f)), has_partners_.push_back(estimate.has_partners(f));
      for (const Choice& c : space.families[f].choices)
        largest_num_layers_ = std::max<uint64_t>(largest_num_layers_, c.layers.size());
    }
  }

  // What is searched from now on: what `train` takes, or what it refuses and is better than a score.
  void among_trained() { trained_ = true, cap_ = std::numeric_limits<double>::infinity(); }
  void among_untrained(double better_than) { trained_ = false, cap_ = better_than; }

  // The best that fit, one of each kind.
  std::vector<Found> best(const Limits& limits, size_t num_rows, double worth, bool is_answer,
                          int64_t aside = kAside) {
    trials_ = is_answer ? options_.trials : aside, is_answer_ = is_answer;
    limits_ = limits, num_rows_ = num_rows, worth_ = worth, spare_ = kSpare;
    states_.clear(), kinds_.clear(), queue_ = {};
    // What was guessed too large at first may turn out to fit when more is known.
    for (bool again = true; again;) {
      again = false;
      for (size_t i = 0; i < combinations_.size(); ++i)
        if (const std::optional<Next> next = solve(i); next && next->score < stop_score())
          queue_.push({next->score, i}), again = true;
      again = again && run();
      queue_ = {};
    }
    std::vector<Found> out = rows();
    if (out.size() > num_rows) out.resize(num_rows);
    return out;
  }

  // How much guesses of memory are trusted from now on.
  void trust_guesses(bool much) { unsure_ = much ? kUnsureGuess : kVeryUnsureGuess; }

  // Those least too large, the smallest guesses measured among them.
  std::vector<Found> nearest(const Limits& limits) {
    std::vector<std::pair<double, size_t>> order;
    for (size_t i = 0; i < combinations_.size(); ++i) {
      const Combinations::Combination c = combinations_.at(i);
      if (c.counts && is_wanted(c.candidate)) order.emplace_back(over(estimate_.of(whole(c)), limits), i);
    }
    if (order.empty()) return {};
    const size_t num = std::min(kMostNearest, order.size());
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(num), order.end());
    std::vector<Candidate> smallest;
    for (size_t i = 0; i < num; ++i) smallest.push_back(whole(combinations_.at(order[i].second)));
    measure_these(smallest);
    for (size_t i = 0; i < num; ++i) learn(order[i].second, smallest[i]);
    descend(limits);
    std::vector<Found> out;
    for (const auto& [key, candidate] : candidates_)
      if (is_wanted(measured_.at(key))) out.push_back(found(candidate));
    std::stable_sort(out.begin(), out.end(), [&](const Found& a, const Found& b) {
      return over(figures_of(a.measured), limits) < over(figures_of(b.measured), limits);
    });
    std::set<std::vector<size_t>> kinds;
    std::erase_if(out, [&](const Found& f) { return !kinds.insert(kind_of(f.candidate)).second; });
    if (out.size() > kMostNearest) out.resize(kMostNearest);
    return out;
  }

  // The same candidate as others see it: by another worth.
  Found scored(Found f, double worth) const {
    f.score = score_of(space_, f.candidate, static_cast<double>(f.measured.step_ns), worth);
    return f;
  }

  bool fits(const Measured& m, const Limits& limits) const { return over(figures_of(m), limits) <= 0; }
  int64_t num_measured() const { return static_cast<int64_t>(measured_.size()); }
  bool complete() const { return complete_; }

 private:
  struct Next {
    Candidate candidate;
    double step_ns = 0, score = 0;
  };
  // Of a combination: with how many layers it was measured, and what that was.
  struct State {
    int too_few = 0, enough = std::numeric_limits<int>::max();
    std::vector<std::pair<int, Figures>> seen;
    bool refused = false;
  };
  struct Entry {
    double score;
    size_t combination;
    bool operator>(const Entry& other) const {
      return std::tie(score, combination) > std::tie(other.score, other.combination);
    }
  };

  static double over(const Figures& f, const Limits& l) {
    return std::max(f.device - l.device, f.host - l.host);
  }

  bool is_wanted(const Candidate& c) const {
    return estimate_.is_possible(c) && estimate_.trains(c) == trained_;
  }
  bool is_wanted(const Measured& m) const { return m.possible() && m.trains() == trained_; }

  Candidate whole(const Combinations::Combination& c) const {
    Candidate out = c.candidate;
    if (c.solved != SIZE_MAX)
      out.layers[c.solved] =
          static_cast<int>(space_.families[c.solved].choices[out.choice[c.solved]].layers.size());
    return out;
  }

  // What decides what is kept of a microbatch.
  bool is_of_activations(size_t family) const {
    return space_.families[family].per_microbatch || resizes_[family];
  }
  // A number for all candidates that keep the same of a microbatch, in as many layers or in any: estimates of them are off
  // alike.
  uint64_t activations_of(const Candidate& c, bool by_layers = false) const {
    uint64_t out = 0;
    for (size_t f = 0; f < c.choice.size(); ++f) {
      if (!is_of_activations(f) && !has_partners_[f]) continue;
      out = out * space_.families[f].choices.size() + c.choice[f];
      if (by_layers) out = out * (largest_num_layers_ + 1) + static_cast<uint64_t>(c.layers[f]);
    }
    return out;
  }
  // Of a combination that the program refuses: all with the same activations are none, where these alone are refused too.
  void blame(const Combinations::Combination& combination, const Candidate& candidate) {
    Candidate bare = candidate;
    for (size_t f = 0; f < bare.choice.size(); ++f)
      if (!is_of_activations(f) && !has_partners_[f]) bare.choice[f] = 0, bare.layers[f] = 0;
    measure_these({bare});
    if (!measured_.at(key_of(bare)).possible()) refused_.insert(activations_of(combination.candidate, true));
  }
  const Figures* known_off(const Candidate& c) const {
    const auto at = off_.find(activations_of(c));
    return at == off_.end() ? nullptr : &at->second;
  }
  bool lies_beside(const Candidate& c) const {
    for (size_t f = 0; f < c.choice.size(); ++f)
      if (space_.families[f].choices[c.choice[f]].beside) return true;
    return false;
  }
  std::vector<size_t> kind_of(const Candidate& c) const {
    std::vector<size_t> out;
    for (size_t f = 0; f < c.choice.size(); ++f)
      if (!space_.families[f].fine) out.push_back(c.choice[f]);
    return out;
  }
  double score(const Candidate& c, double step_ns) const { return score_of(space_, c, step_ns, worth_); }
  Found found(const Candidate& c) const {
    const Measured& m = measured_.at(key_of(c));
    return {c, m, score(c, static_cast<double>(m.step_ns))};
  }

  // From the one least too large of all that were measured: what differs from it in one family, as long as one of
  // these is smaller.
  void descend(const Limits& limits) {
    const auto over_of = [&](const Candidate& c) {
      const Measured& m = measured_.at(key_of(c));
      return is_wanted(m) ? over(figures_of(m), limits) : std::numeric_limits<double>::infinity();
    };
    Candidate least = candidates_.begin()->second;
    for (const auto& [key, candidate] : candidates_)
      if (over_of(candidate) < over_of(least)) least = candidate;
    for (bool again = true; again;) {
      std::vector<Candidate> others;
      for (size_t f = 0; f < space_.families.size(); ++f)
        for (size_t i = 0; i < space_.families[f].choices.size(); ++i) {
          Candidate c = least;
          c.choice[f] = i;
          c.layers[f] = static_cast<int>(space_.families[f].choices[i].layers.size());
          if (!is_wanted(c)) continue;
          const Figures guessed = guess(c);
          if (over(guessed, limits) <= over_of(least) + kUnsureGuess * guessed.device) others.push_back(c);
        }
      measure_these(others);
      again = false;
      for (const Candidate& c : others)
        if (over_of(c) < over_of(least)) least = c, again = true;
    }
  }

  // `b` is `a` with more on top: of every family the same or nothing less.
  bool is_more(const Candidate& b, const Candidate& a) const {
    for (size_t f = 0; f < a.choice.size(); ++f) {
      if (space_.families[f].fine || a.choice[f] == 0) continue;
      const std::vector<Choice>& choices = space_.families[f].choices;
      const auto parts = [&](size_t i) {
        return choices[i].parts.empty() ? std::vector<size_t>{i} : choices[i].parts;
      };
      const std::vector<size_t> less = parts(a.choice[f]), more = parts(b.choice[f]);
      const bool holds = std::all_of(less.begin(), less.end(), [&](size_t p) {
        return std::any_of(more.begin(), more.end(),
                           [&](size_t m) { return m == p || sets_all_of(choices[m], choices[p]); });
      });
      // In fewer layers it is something else, such as more in some in place of less in all.
      if (!holds || b.layers[f] < a.layers[f]) return false;
    }
    return true;
  }

  // Of each kind the best, best first; what is a better one with more on top, and no faster, is none.
  std::vector<Found> rows() const {
    std::vector<Found> all, out;
    for (const auto& [kind, found] : kinds_) all.push_back(found);
    std::stable_sort(all.begin(), all.end(),
                     [](const Found& a, const Found& b) { return a.score < b.score; });
    for (const Found& f : all)
      if (std::none_of(out.begin(), out.end(), [&](const Found& better) {
            return is_more(f.candidate, better.candidate) && f.measured.step_ns >= better.measured.step_ns;
          }))
        out.push_back(f);
    return out;
  }

  Figures guess(const Candidate& c) const {
    const Figures f = estimate_.of(c), *off = known_off(c);
    Figures out = off ? plus(f, *off) : f;
    out.step_ns = std::max(out.step_ns, 1.0);
    return out;
  }

  // What to measure next of a combination: of a technique of layers the fewest that are guessed to fit.
  std::optional<Next> solve(size_t index) const {
    const Combinations::Combination c = combinations_.at(index);
    if (!c.counts || refused_.contains(activations_of(c.candidate, true)) || !is_wanted(c.candidate))
      return {};
    const auto found = states_.find(index);
    const State* state = found == states_.end() ? nullptr : &found->second;
    if (state && state->refused) return {};
    // One layer less than fits is as good as the line through what was measured.
    const bool fits_with_more = state && state->enough < std::numeric_limits<int>::max();
    const double unsure = known_off(c.candidate) && !fits_with_more ? kSureGuess : unsure_;
    const auto fits = [&](const Figures& f) { return over(f, limits_) <= 0; };
    const auto may_fit = [&](const Figures& f) {
      // What is pinned adds up nearly to the byte.
      return f.device <= limits_.device * (1 + unsure) &&
             f.host <= limits_.host * (1 + std::min(unsure, kUnsureHost));
    };
    if (c.solved == SIZE_MAX) {
      const Figures f = guess(c.candidate);
      if (state || !may_fit(f)) return {};
      return Next{c.candidate, f.step_ns, score(c.candidate, f.step_ns)};
    }
    Candidate candidate = whole(c);
    const int all = candidate.layers[c.solved];
    const int first = state ? state->too_few + 1 : 1;
    const bool fit_before = state && state->enough <= all;
    const int last = fit_before ? state->enough - 1 : all;
    if (first > last) return {};
    // A line through what is known.
    Figures slope = estimate_.per_layer(c.candidate, c.solved);
    int at = all;
    Figures there;
    if (!state || state->seen.empty()) {
      there = guess(candidate);
    } else {
      const auto& seen = state->seen;
      at = seen.back().first, there = seen.back().second;
      if (seen.size() > 1) {
        const auto& [k, f] = seen[seen.size() - 2];
        slope = times(plus(there, times(f, -1)), 1.0 / (at - k));
      }
    }
    const auto line = [&](int k) { return plus(there, times(slope, k - at)); };
    int k = first;
    if (const double excess = line(first).device - limits_.device; excess > 0 && slope.device < 0)
      k = first + static_cast<int>(std::min(std::ceil(excess / -slope.device), 1e6));
    else if (excess > 0)
      k = last + 1;
    if (k > last || !fits(line(k))) {
      // Not by the guess; what is just beyond it is tried all the same, once.
      if (!may_fit(line(last))) return {};
      k = last;
    }
    candidate.layers[c.solved] = k;
    const double step_ns = guess(candidate).step_ns;
    return Next{candidate, step_ns, score(candidate, step_ns)};
  }

  double stop_score() const {
    const std::vector<Found> known = rows();
    if (known.empty()) return cap_;
    const double far = std::min(known[0].score * kFar, cap_);
    if (known.size() < num_rows_) return far;
    return std::min(far, std::max(known[num_rows_ - 1].score, known[0].score * (1 + kTolerance)));
  }

  // False where nothing was measured, or a limit was met.
  bool run() {
    bool any = false;
    for (;;) {
      const double stop = stop_score();
      const std::vector<Found> known = rows();
      // Beyond the best that is proven, a few more for the table.
      const double proven =
          known.empty() ? std::numeric_limits<double>::infinity() : known[0].score * (1 + kTolerance);
      std::vector<std::pair<size_t, Candidate>> batch;
      while (batch.size() < kBatch && !queue_.empty()) {
        const Entry top = queue_.top();
        if (top.score >= stop || (top.score >= proven && spare_ == 0)) break;
        queue_.pop();
        const std::optional<Next> next = solve(top.combination);
        if (!next) continue;
        if (next->score > top.score) {
          queue_.push({next->score, top.combination});
          continue;
        }
        // Nothing new: it cannot be the better of its kind, or it is a faster one with more on top.
        if (const auto same = kinds_.find(kind_of(next->candidate));
            same != kinds_.end() && same->second.score * (1 + kTolerance) < next->score)
          continue;
        if (std::any_of(known.begin(), known.end(), [&](const Found& f) {
              return is_more(next->candidate, f.candidate) &&
                     static_cast<double>(f.measured.step_ns) <= next->step_ns;
            }))
          continue;
        // Guesses of what lies beside the step are rough: it is tried where it is guessed to win.
        if (!known.empty() && lies_beside(next->candidate) &&
            next->score >= known[0].score * (1 - kTolerance) && known.size() >= num_rows_)
          continue;
        if (top.score >= proven) --spare_;
        batch.emplace_back(top.combination, next->candidate);
      }
      if (batch.empty()) return any;
      if (trials_ <= 0) {
        if (is_answer_) complete_ = false;
        return false;
      }
      trials_ -= static_cast<int64_t>(batch.size());
      if (options_.deadline && std::chrono::steady_clock::now() >= *options_.deadline) {
        complete_ = false;
        return false;
      }
      std::vector<Candidate> candidates;
      for (const auto& [index, candidate] : batch) candidates.push_back(candidate);
      measure_these(candidates);
      any = true;
      for (const auto& [index, candidate] : batch) learn(index, candidate);
    }
  }

  void learn(size_t index, const Candidate& candidate) {
    const Found found = this->found(candidate);
    State& state = states_[index];
    if (!found.measured.possible()) {
      state.refused = true;
      ++trials_;  // that was quick
      blame(combinations_.at(index), candidate);
      return;
    }
    const Figures f = figures_of(found.measured);
    off_[activations_of(candidate)] = plus(f, times(estimate_.of(candidate), -1));
    const bool fits = over(f, limits_) <= 0;
    if (fits && is_wanted(found.measured) && found.score < cap_) {
      const auto [kind, is_new] = kinds_.try_emplace(kind_of(candidate), found);
      if (!is_new && found.score < kind->second.score) kind->second = found;
    }
    const size_t solved = combinations_.at(index).solved;
    if (solved == SIZE_MAX) return;
    const int k = candidate.layers[solved];
    if (state.seen.empty() || state.seen.back().first != k) state.seen.emplace_back(k, f);
    if (fits)
      state.enough = std::min(state.enough, k);
    else
      state.too_few = std::max(state.too_few, k);
    if (const std::optional<Next> next = solve(index)) queue_.push({next->score, index});
  }

  using Key = std::pair<std::vector<size_t>, std::vector<int>>;
  static Key key_of(const Candidate& c) { return {c.choice, c.layers}; }

  void measure_these(const std::vector<Candidate>& candidates) {
    std::vector<Candidate> missing;
    std::vector<config::Config> configs;
    for (const Candidate& c : candidates) {
      if (measured_.contains(key_of(c))) continue;
      missing.push_back(c);
      configs.push_back(configured(space_, c));
    }
    const std::vector<Measured> measured = measure_all(configs, space_.num_ranks, ground_);
    for (size_t i = 0; i < missing.size(); ++i)
      measured_[key_of(missing[i])] = measured[i], candidates_[key_of(missing[i])] = missing[i];
  }

  const Space& space_;
  const Estimate& estimate_;
  const schedule::Ground& ground_;
  const SearchOptions& options_;
  const Combinations combinations_;
  std::vector<bool> resizes_, has_partners_;  // by family
  uint64_t largest_num_layers_ = 0;
  Limits limits_;
  size_t num_rows_ = 1;
  int spare_ = 0;
  int64_t trials_ = 0;
  bool is_answer_ = true, trained_ = true;
  double cap_ = std::numeric_limits<double>::infinity();
  double worth_ = 0, unsure_ = kUnsureGuess;
  std::map<Key, Measured> measured_;
  std::map<Key, Candidate> candidates_;
  std::unordered_map<uint64_t, Figures> off_;   // measured less estimated, by activations_of
  std::unordered_set<uint64_t> refused_;        // by activations_of in their layers
  std::map<std::vector<size_t>, Found> kinds_;  // the best that fits, by kind_of
  std::unordered_map<size_t, State> states_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
  bool complete_ = true;
};

int num_rounded(const Space& space, const Candidate& c) {
  int out = 0;
  for (size_t f = 0; f < c.choice.size(); ++f) out += num_rounded(space.families[f].choices[c.choice[f]]);
  return out;
}

Limits limits_of(const schedule::Ground& ground, const Measured& any) {
  Limits out;
  out.host = static_cast<double>(any.fit.host_limit);
  if (ground.machine.kind == cost::MachineKind::Gpu) out.device = static_cast<double>(any.fit.device_limit);
  return out;
}

// Beside the answer: what would be better, or fit at all, if `train` took it.
void add_not_yet(Answer& out, Search& s, const Limits& limits, const SearchOptions& options) {
  const size_t num = std::min(options.rows, kNotYet);
  s.among_untrained(out.rows.empty() ? std::numeric_limits<double>::infinity() : out.rows[0].score);
  for (const bool much : {true, false}) {
    s.trust_guesses(much);
    out.not_yet.rows = s.best(limits, num, options.worth, false, kAsideNotYet);
    if (!out.rows.empty() || !out.not_yet.rows.empty()) return;
  }
  // One of the smallest may fit after all.
  out.not_yet.rows = s.nearest(limits);
  if (out.not_yet.rows.empty()) return;
  out.not_yet.fits = out.not_yet.rows[0].measured.fits();
  if (out.not_yet.rows.size() > 1) out.not_yet.rows.resize(1);
}

}  // namespace

double score_of(const Space& space, const Candidate& candidate, double step_ns, double worth) {
  return step_ns * std::pow(1 + worth, num_rounded(space, candidate));
}

Answer search(Space& space, const schedule::Ground& ground, const SearchOptions& options) {
  const Estimate estimate(space, ground);
  const Limits limits = limits_of(ground, estimate.base());
  Search s(space, estimate, ground, options);
  Answer out;
  out.plain = {without_any(space), estimate.base(), static_cast<double>(estimate.base().step_ns)};
  out.rows = s.best(limits, options.rows, options.worth, true);
  if (out.rows.empty()) {
    out.nearest = s.nearest(limits);
    s.trust_guesses(false);
    out.rows = s.best(limits, options.rows, options.worth, true);
  }
  if (out.rows.empty()) {
    out.nearest = s.nearest(limits);
    // One of the smallest may fit after all.
    for (const Found& f : out.nearest)
      if (f.measured.fits()) out.rows.push_back(s.scored(f, options.worth));
    if (!out.rows.empty()) out.nearest.clear();
  } else if (const std::vector<Found> plainest = s.best(limits, 1, kRatherNot, false); !plainest.empty()) {
    const Found least = s.scored(plainest[0], options.worth);
    if (std::none_of(out.rows.begin(), out.rows.end(), [&](const Found& f) {
          return num_rounded(space, f.candidate) <= num_rounded(space, least.candidate);
        }))
      out.rows.push_back(least);
  }
  std::stable_sort(out.rows.begin(), out.rows.end(),
                   [](const Found& a, const Found& b) { return a.score < b.score; });
  if (const std::vector<Found> unlimited = s.best({}, 1, 0, false); !unlimited.empty())
    out.unlimited = unlimited[0];
  add_not_yet(out, s, limits, options);
  out.num_combinations = static_cast<int64_t>(Combinations(space).size());
  out.num_measured = estimate.num_measured() + s.num_measured();
  out.complete = s.complete();
  return out;
}

}  // namespace pleat::tune
