#include "layout/fit.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "base/checked.h"
#include "base/error.h"
#include "config/quote.h"

namespace pleat::layout {
namespace {

constexpr std::array<std::string_view, 5> kAxisNames = {"tp", "cp", "ep", "dp", "pp"};

struct Axes {
  int64_t tp, cp, ep, dp, pp;
};

// Ranks between neighbours on the pipeline.
int64_t pipeline_stride(const std::array<int, 5>& order, const Axes& a) {
  const int64_t size[] = {a.tp, a.cp, a.ep, a.dp, a.pp};
  int64_t stride = 1;
  for (const int axis : order) {
    if (axis == 4) break;
    stride *= size[axis];
  }
  return stride;
}

struct Strides {
  int64_t attention, expert;
};
// Needs sizes that divide the world.
Strides strides_of(const Sizes& s, const std::array<int, 5>& order) {
  const int64_t dp = s.world / (s.tp * s.cp * s.pp), edp = s.world / (s.etp * s.ep * s.pp);
  return {pipeline_stride(order, {s.tp, s.cp, 1, dp, s.pp}),
          pipeline_stride(order, {s.etp, 1, s.ep, edp, s.pp})};
}

int64_t attention_ranks(const Sizes& s) {
  return base::checked_mul(base::checked_mul(s.tp, s.cp, "tp x cp"), s.pp, "tp x cp x pp");
}
int64_t expert_ranks(const Sizes& s) {
  return base::checked_mul(base::checked_mul(s.etp, s.ep, "etp x ep"), s.pp, "etp x ep x pp");
}

bool fits(const Sizes& s, const std::array<int, 5>& order) {
  if (s.world % (s.tp * s.cp * s.pp) != 0 || s.world % (s.etp * s.ep * s.pp) != 0) return false;
  if (s.num_experts > 0 && s.num_experts % s.ep != 0) return false;
  const Strides strides = strides_of(s, order);
  return s.pp == 1 || strides.attention == strides.expert;
}

// One for every key that changes, and its ratio.
double change(int64_t from, int64_t to) {
  return from == to ? 0 : 1 + std::abs(std::log2(double(to) / double(from)));
}

struct Pair {
  double cost;
  int64_t a, b;
  bool operator<(const Pair& o) const { return std::tie(cost, a, b) < std::tie(o.cost, o.a, o.b); }
};

// Pairs whose product divides n, nearest to (a, b) first, at most kMost: beyond, every other choice is
// nearer.
std::vector<Pair> nearest_pairs(int64_t n, const std::vector<int64_t>& divisors, int64_t a, int64_t b,
                                int64_t b_divides) {
  constexpr size_t kMost = 200;
  std::vector<Pair> out;
  for (const int64_t x : divisors) {
    if (n % x != 0) continue;
    for (const int64_t y : divisors)
      if (n / x % y == 0 && (b_divides == 0 || b_divides % y == 0))
        out.push_back({change(a, x) + change(b, y), x, y});
  }
  std::sort(out.begin(), out.end());
  out.resize(std::min(out.size(), kMost));
  return out;
}

std::string text_of(const Sizes& s) {
  return fmt::format("tp={} cp={} pp={} ep={} etp={} (dp={} edp={})", s.tp, s.cp, s.pp, s.ep, s.etp,
                     s.world / (s.tp * s.cp * s.pp), s.world / (s.etp * s.ep * s.pp));
}

}  // namespace

std::array<int, 5> parse_order(const std::string& order) {
  std::array<int, 5> out{};
  size_t num = 0;
  std::string_view rest = order;
  for (bool more = true; more;) {
    const size_t dash = rest.find('-');
    more = dash != std::string_view::npos;
    const std::string_view name = rest.substr(0, dash);
    if (more) rest.remove_prefix(dash + 1);
    const auto found = std::find(kAxisNames.begin(), kAxisNames.end(), name);
    const int axis = static_cast<int>(found - kAxisNames.begin());
    const bool known = found != kAxisNames.end() && num < out.size();
    if (!known || std::find(out.begin(), out.begin() + num, axis) != out.begin() + num) {
      num = 0;
      break;
    }
    out[num++] = axis;
  }
  if (num != out.size())
    base::fail(
        "parallel.order = {}: needed are the names tp, cp, ep, dp and pp, each once, as in "
        "\"tp-cp-ep-dp-pp\"",
        config::quote(order));
  return out;
}

std::string misfit(const Sizes& s) {
  const std::array<int, 5> order = parse_order(s.order);
  std::vector<std::string> out;
  const int64_t attention = attention_ranks(s), expert = expert_ranks(s);
  if (s.world % attention != 0)
    out.push_back(fmt::format("attention needs ranks = tp x cp x pp x dp, but {} / ({} x {} x {}) = {:.4g}",
                              s.world, s.tp, s.cp, s.pp, double(s.world) / double(attention)));
  if (s.world % expert != 0)
    out.push_back(fmt::format("experts need ranks = etp x ep x pp x edp, but {} / ({} x {} x {}) = {:.4g}",
                              s.world, s.etp, s.ep, s.pp, double(s.world) / double(expert)));
  if (s.num_experts > 0 && s.num_experts % s.ep != 0)
    out.push_back(fmt::format("each of ep ranks needs as many experts, but {} / {} = {:.4g}", s.num_experts,
                              s.ep, double(s.num_experts) / double(s.ep)));
  if (out.empty() && s.pp > 1)
    if (const Strides strides = strides_of(s, order); strides.attention != strides.expert)
      out.push_back(fmt::format(
          "order {} puts pp before other axes: pipeline neighbours are {} ranks apart for attention "
          "(tp={} cp={} dp={}) and {} for experts (etp={} ep={} edp={}), but must be the same "
          "ranks; pp last always is",
          s.order, strides.attention, s.tp, s.cp, s.world / attention, strides.expert, s.etp, s.ep,
          s.world / expert));
  return fmt::format("{}", fmt::join(out, "; "));
}

std::string owners_misfit(const Sizes& s) {
  const int64_t n = s.optimizer_group;
  if (n == 0) return "";
  const int64_t dp = s.world / (s.tp * s.cp * s.pp), edp = s.world / (s.etp * s.ep * s.pp);
  struct Replicas {
    const char* what;
    std::string equation;
    int64_t size;
  };
  const Replicas all[] = {
      {"dense weights", fmt::format("dp x cp = {} x {}", dp, s.cp), dp * s.cp},
      {"norms and routers", fmt::format("tp x dp x cp = {} x {} x {}", s.tp, dp, s.cp), s.tp * dp * s.cp},
      {"experts", "edp", edp}};
  const auto fits = [&](int64_t group) {
    return std::all_of(std::begin(all), std::end(all),
                       [&](const Replicas& r) { return group >= r.size || r.size % group == 0; });
  };
  for (const Replicas& r : all) {
    if (n >= r.size || r.size % n == 0) continue;
    int64_t below = n, above = n;
    while (!fits(below)) --below;
    while (!fits(above)) ++above;
    return fmt::format(
        "parallel.optimizer_group = {} does not divide the replicas of {}, {} = {}: {} / {} = {:.4g}. "
        "Nearest that do: {} and {}",
        n, r.what, r.equation, r.size, r.size, n, double(r.size) / double(n), below, above);
  }
  return "";
}

std::vector<Sizes> nearest_fits(const Sizes& s, size_t num, const Judge& judge) {
  constexpr int kMostJudged = 5000;  // beyond, nothing is near
  int judged = 0;
  const std::array<int, 5> order = parse_order(s.order);
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= s.world; ++d)
    if (s.world % d == 0) divisors.push_back(d);
  struct Candidate {
    double cost;
    Sizes sizes;
  };
  std::vector<Candidate> best;
  for (const int64_t pp : divisors) {
    const double pp_cost = change(s.pp, pp);
    const auto nearer = [&](double cost) { return best.size() < num || cost < best.back().cost; };
    if (!nearer(pp_cost)) continue;
    const auto attention = nearest_pairs(s.world / pp, divisors, s.tp, s.cp, 0);
    const auto expert = nearest_pairs(s.world / pp, divisors, s.etp, s.ep, s.num_experts);
    for (const Pair& a : attention)
      for (const Pair& e : expert) {
        const double cost = pp_cost + a.cost + e.cost;
        if (!nearer(cost)) break;
        Sizes candidate = s;
        candidate.pp = pp, candidate.tp = a.a, candidate.cp = a.b, candidate.etp = e.a, candidate.ep = e.b;
        if (!fits(candidate, order)) continue;
        if (judge && (++judged > kMostJudged || !judge(candidate))) continue;
        const auto at = std::upper_bound(best.begin(), best.end(), cost,
                                         [](double c, const Candidate& b) { return c < b.cost; });
        best.insert(at, {cost, candidate});
        if (best.size() > num) best.pop_back();
      }
  }
  std::vector<Sizes> out;
  for (const Candidate& c : best) out.push_back(c.sizes);
  return out;
}

void require_fit(const Sizes& s, const Judge& judge) {
  const std::pair<const char*, int64_t> counts[] = {{"ranks", s.world}, {"tp", s.tp},   {"cp", s.cp},
                                                    {"pp", s.pp},       {"vpp", s.vpp}, {"ep", s.ep},
                                                    {"etp", s.etp}};
  for (const auto& [name, count] : counts)
    if (count < 1 || count > (1 << 20)) base::fail("{} = {}; needed is 1 to {}", name, count, 1 << 20);
  const std::string why = misfit(s);
  if (why.empty()) {
    if (const std::string owners = owners_misfit(s); !owners.empty()) base::fail("{}", owners);
    return;
  }
  std::vector<std::string> nearest;
  for (const Sizes& fit : nearest_fits(s, 3, judge)) {
    const std::string also = judge ? judge(fit).value_or("") : "";
    nearest.push_back("\n  " + text_of(fit) + (also.empty() ? "" : ", with " + also));
  }
  const int64_t multiple = std::lcm(attention_ranks(s), expert_ranks(s));
  const std::string ranks = fmt::format("{} rank{}", s.world, s.world == 1 ? "" : "s");
  base::fail(
      "{} cannot be laid out as tp={} cp={} pp={} ep={} etp={}: {}.\n{}{}", ranks, s.tp, s.cp, s.pp, s.ep,
      s.etp, why,
      nearest.empty() ? fmt::format("No setting of them lets this model run on {}.", ranks)
                      : fmt::format("Nearest settings for {}:{}", ranks, fmt::join(nearest, "")),
      s.world % multiple != 0 ? fmt::format("\nAs asked, a multiple of {} ranks is needed.", multiple) : "");
}

}  // namespace pleat::layout
