#include "tune/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include "report/format.h"

namespace pleat::tune {
namespace {

using Edit = std::function<void(config::Config&)>;

// How many of the nearest are tried with every change.
constexpr size_t kTried = 2;
constexpr int64_t kShortest = 128, kMostRanks = 64;

std::string bytes_text(int64_t bytes) { return report::format_bytes(static_cast<double>(bytes)); }

class Trials {
 public:
  Trials(const Space& space, const std::vector<Found>& nearest, const schedule::Ground& ground)
      : space_(space), nearest_(nearest), ground_(ground) {}

  // How it fits with that change, as a sentence; nothing where it does not. `nodes_grow`: ranks that are more may stand in
  // nodes with more memory of their hosts, which the sentence then says.
  std::optional<std::string> fits(const Edit& edit, int64_t num_ranks, bool nodes_grow = false) const {
    for (size_t i = 0; i < std::min(kTried, nearest_.size()); ++i) {
      config::Config config = configured(space_, nearest_[i].candidate);
      edit(config);
      const Measured m = measure(config, num_ranks, ground_);
      const bool cpu = ground_.machine.kind == cost::MachineKind::Cpu;
      const bool larger_hosts =
          nodes_grow && !cpu && m.possible() && m.device_over(ground_.machine.kind) <= 0 && m.host_over() > 0;
      if (!m.fits() && !larger_hosts) continue;
      return fmt::format(
          "it fits: {} of {}{}, a step in {:.0f} ms, with {}",
          bytes_text(cpu ? m.fit.host_bytes : m.device_bytes),
          bytes_text(cpu ? m.fit.host_limit : m.fit.device_limit),
          larger_hosts ? fmt::format(", {} of host memory in a node", bytes_text(m.fit.host_bytes)) : "",
          m.figures.step_ms, text_of(space_, nearest_[i].candidate));
    }
    return {};
  }

 private:
  const Space& space_;
  const std::vector<Found>& nearest_;
  const schedule::Ground& ground_;
};

std::optional<std::string> shorter(const Trials& trials, const Space& space) {
  const auto edit = [](int64_t length) {
    return [length](config::Config& c) {
      c.train.seq_len = length;
      if (c.train.loss_chunk > c.train.micro_batch * length) c.train.loss_chunk = 0;
    };
  };
  int64_t least = space.base.train.seq_len;
  while (least / 2 >= kShortest) least /= 2;
  if (least == space.base.train.seq_len || !trials.fits(edit(least), space.num_ranks)) return {};
  for (int64_t length = space.base.train.seq_len / 2; length >= least; length /= 2)
    if (const auto text = trials.fits(edit(length), space.num_ranks))
      return fmt::format("with train.seq_len = {} {}", length, *text);
  return {};
}

std::optional<std::string> thinner(const Trials& trials, const Space& space) {
  const auto edit = [](int64_t layers) {
    return [layers](config::Config& c) {
      c.model.num_layers = layers;
      if (!c.recompute.modules.empty()) c.recompute.layers = "all";
      if (!c.offload.modules.empty()) c.offload.layers = "all";
    };
  };
  // Offload keeps the last layers where they are; of no others there would be nothing to move.
  const int64_t least = std::max(space.base.model.leading_dense_layers, space.base.offload.keep_last) + 1;
  int64_t fits = 0, not_fits = space.base.model.num_layers;
  std::optional<std::string> text;
  while (not_fits - std::max(fits, least - 1) > 1) {
    const int64_t middle = fits == 0 ? least : (fits + not_fits) / 2;
    if (auto found = trials.fits(edit(middle), space.num_ranks)) {
      fits = middle, text = std::move(found);
    } else {
      if (fits == 0) return {};
      not_fits = middle;
    }
  }
  if (!text) return {};
  return fmt::format("with model.num_layers = {} in place of {} {}", fits, space.base.model.num_layers,
                     *text);
}

std::optional<std::string> spread(const Trials& trials, const Space& space) {
  const bool moe = space.base.moe.num_experts > 0;
  for (int64_t times = 2; space.num_ranks * times <= kMostRanks; times *= 2) {
    const int64_t ranks = space.num_ranks * times, ep = space.base.parallel.ep * times;
    if (moe && space.base.moe.num_experts % ep != 0) return {};
    std::string shape;
    const auto text = trials.fits(
        [&](config::Config& c) {
          if (moe) c.parallel.ep = ep;
          const int64_t replicas =
              std::max<int64_t>(1, ranks / (c.parallel.tp * c.parallel.cp * c.parallel.pp));
          // The tokens of a step stay where they can be divided so.
          const int64_t sequences = c.train.micro_batch * c.train.num_microbatches;
          c.train.num_microbatches =
              std::lcm(c.train.num_microbatches, replicas * (c.parallel.vpp > 1 ? c.parallel.pp : 1));
          c.train.micro_batch = std::max<int64_t>(1, sequences / c.train.num_microbatches);
          const int64_t now = c.train.micro_batch * c.train.num_microbatches;
          shape = fmt::format(
              "train.micro_batch = {}, train.num_microbatches = {}{}", c.train.micro_batch,
              c.train.num_microbatches,
              now == sequences ? "" : fmt::format(": {} sequences in place of {}", now, sequences));
        },
        ranks, true);
    if (text)
      return fmt::format("with {} ranks ({}{}) {}", ranks, moe ? fmt::format("parallel.ep = {}, ", ep) : "",
                         shape, *text);
  }
  return {};
}

}  // namespace

std::vector<std::string> what_would_fit(const Space& space, const std::vector<Found>& nearest,
                                        const schedule::Ground& ground) {
  std::vector<std::string> out;
  if (nearest.empty()) return out;
  const Trials trials(space, nearest, ground);
  for (const auto& text : {shorter(trials, space), thinner(trials, space), spread(trials, space)})
    if (text) out.push_back(*text);
  const Measured& m = nearest[0].measured;
  if (m.device_over(ground.machine.kind) > 0 && ground.machine.kind == cost::MachineKind::Gpu)
    out.push_back(fmt::format("with {} of device memory it fits, with {}", bytes_text(m.device_bytes),
                              text_of(space, nearest[0].candidate)));
  if (m.host_over() > 0)
    out.push_back(
        fmt::format("with {} of host memory in a node it fits its host", bytes_text(m.fit.host_bytes)));
  return out;
}

std::string not_yet_advice(const Space& space, const Answer& answer, const schedule::Ground& ground) {
  const Answer::NotYet& n = answer.not_yet;
  if (!answer.rows.empty() || n.rows.empty() || !n.fits) return "";
  const Measured& m = n.rows[0].measured;
  const bool cpu = ground.machine.kind == cost::MachineKind::Cpu;
  return fmt::format(
      "with what `train` cannot do here yet it would fit: {}{} of {} of host memory, a step in {:.0f} ms, "
      "with {}",
      cpu ? "" : fmt::format("{} of {}, ", bytes_text(m.device_bytes), bytes_text(m.fit.device_limit)),
      bytes_text(m.fit.host_bytes), bytes_text(m.fit.host_limit), m.figures.step_ms,
      text_of(space, n.rows[0].candidate));
}

std::string token_budget_advice(const Space& space, const Found& found, const schedule::Ground& ground) {
  constexpr double kBudget = 2;
  config::Config config = configured(space, found.candidate);
  if (config.moe.num_experts == 0 || config.parallel.ep * config.parallel.etp < 2 ||
      config.moe.token_budget > 0)
    return "";
  config.moe.token_budget = kBudget;
  const Measured m = measure(config, space.num_ranks, ground);
  const int64_t saved = found.measured.device_bytes - m.device_bytes;
  if (!m.possible() || saved <= 0) return "";
  return fmt::format(
      "experts have room for the worst routing: with moe.token_budget = {} a rank would take {} less, and a "
      "step in which "
      "one of them needs more is what moe.overflow says",
      kBudget, bytes_text(saved));
}

}  // namespace pleat::tune
