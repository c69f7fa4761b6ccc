// The numbers a training step leaves behind, as plain data: what the console, metrics.jsonl, TensorBoard
// and the HTML report all read. Router health is here because a router fails quietly: the loss looks fine
// while experts starve, so its numbers are part of every step and never an extra.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "report/code_health.h"

namespace pleat::report {

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// Scale of the raw router logits of one layer over the tokens counted.
struct LogitStats {
  double max = 0.0;  // largest absolute logit; both 0 where nobody measured
  double rms = 0.0;
};

// Health of one MoE layer over the tokens its counts cover.
struct RouterHealth {
  int layer = 0;
  std::vector<int64_t> load;   // assignments the router chose per expert, before capacity drops any
  double max_over_mean = 0.0;  // 1 is perfect; the number of experts is the worst
  double min_over_mean = 0.0;  // 1 is perfect; 0 when an expert got nothing
  double entropy = 0.0;        // of the load shares, divided by log(experts): 1 is uniform, 0 is one expert
  double cv = 0.0;             // population standard deviation of the load / mean
  int dead = 0;                // experts with no token at all
  double dropped_share = 0.0;  // assignments dropped by capacity / assignments chosen
  double logit_max = 0.0;
  double logit_rms = 0.0;
  double bias_min = 0.0;  // both 0 where the router has no balancing bias
  double bias_max = 0.0;
};

// `load` has one count per expert (at least one expert, no negative count); `dropped` lies between 0 and
// the sum of the loads; `bias` is empty or has one entry per expert. Throws base::Error otherwise.
// Without any assignment every ratio is 0 and every expert is dead.
RouterHealth router_health(int layer, std::span<const int64_t> load, int64_t dropped, LogitStats logits,
                           std::span<const float> bias);
RouterHealth router_health(int layer, std::span<const int64_t> load, int64_t dropped, LogitStats logits,
                           std::span<const double> bias);

// What the numbers of one layer add up to, mildest first. The first row from the bottom that holds counts:
//   Balanced    max/mean < 1.5 and min/mean > 0.25
//   Uneven      max/mean < 2
//   Skewed      max/mean >= 2
//   Dead        an expert got nothing although the mean load is at least kMeanLoadForDead tokens
//               (below that, nothing is what chance deals out now and then, and it counts as Skewed)
//   Collapsing  the load is worth less than half of the experts: exp(entropy in nats) < experts / 2
//   NonFinite   a router logit is NaN or infinite
enum class Balance { Balanced, Uneven, Skewed, Dead, Collapsing, NonFinite };
inline constexpr double kMeanLoadForDead = 8.0;

Balance balance_of(const RouterHealth& health);
std::string_view name_of(Balance balance);     // "balanced", "uneven", ..., "non-finite"
std::string_view meaning_of(Balance balance);  // the rule above in a few words, for whoever reads the word

// The verdict over all layers: that of the worst one (by Balance, then by max/mean).
struct RouterVerdict {
  std::string word;     // one word; empty when there is no MoE layer
  std::string meaning;  // what the word says
  std::string text;     // "experts: worst layer 17, 3.1x, 2 dead"; empty when there is no MoE layer
  int worst_layer = -1;
};
RouterVerdict router_verdict(std::span<const RouterHealth> layers);

struct EvalRecord {
  double loss = kUnknown;           // nats per token
  double bits_per_byte = kUnknown;  // kUnknown where the tokenizer gives no byte count
};

// One optimizer step. A field nobody measured stays kUnknown, which the log writes as "nan".
struct StepRecord {
  int64_t step = 0;  // 1 is the first step
  double loss = kUnknown;
  std::map<std::string, double> aux;  // auxiliary losses by name, already weighted
  std::vector<double> mtp_loss;       // of multi-token prediction by depth, nats per token, not weighted
  double lr = kUnknown;
  double grad_norm = kUnknown;   // before clipping
  double clip_scale = kUnknown;  // what the gradients were multiplied with; 1 when not clipped
  int64_t tokens = 0;            // trained on so far, this step included
  double tokens_per_s = kUnknown;
  double model_tflops = kUnknown;     // active experts and causal attention only
  double hardware_tflops = kUnknown;  // with recompute and padding
  double percent_of_gemm = kUnknown;  // hardware rate in percent of the GEMM rate measured at start
  double step_seconds = kUnknown;
  double wall_seconds = kUnknown;           // of all processes of the run so far, lost work included
  int64_t refused_steps = 0;                // refused so far in this run
  std::map<std::string, double> breakdown;  // ms by class of work; only on steps that were timed so
  std::optional<EvalRecord> eval;
  std::vector<RouterHealth> health;  // one per MoE layer; may be empty on steps where it is not logged
  std::vector<CodeHealth> codes;     // one per class and side that was coded; none without precision.recipe
};

}  // namespace pleat::report
