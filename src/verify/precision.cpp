#include "verify/precision.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "tensor/halves.h"
#include "verify/budget.h"
#include "verify/close_calls.h"
#include "verify/compare.h"
#include "verify/own_gradients.h"

namespace pleat::verify {
namespace {

void add_forward(Noise& noise, const Runs& runs, const std::vector<Batch>& batches) {
  constexpr std::pair<const char*, const char*> kTaps[] = {
      {"x_out", "hidden states"}, {"router_logits", "router logits"}, {"expert_probs", "gate probabilities"}};
  for (const auto& [tap, row] : kTaps)
    for (size_t s = 0; s < runs.one.steps.size(); ++s)
      for (const auto& [name, x] : runs.one.steps[s].taps)
        if (name.ends_with(tap)) noise.add(row, name, s, &StepResults::taps);
  for (size_t s = 0; s < runs.one.steps.size(); ++s) {
    const StepResults &a = runs.wide.steps[s], &b = runs.one.steps[s], &c = runs.layout.steps[s];
    noise.add_number("loss", s, fmt::format("step {}", s + 1), a.loss, b.loss, c.loss, "hidden states",
                     batches[s].loss_tokens);
    for (const auto& [layer, x] : b.layers)
      for (size_t i = 0; i < x.losses.size(); ++i)
        noise.add_number("auxiliary losses", s, fmt::format("layer {}, step {}", layer, s + 1),
                         a.layers.at(layer).losses[i], x.losses[i], c.layers.at(layer).losses[i],
                         "router logits", batches[s].valid_tokens);
  }
}

// Experts one by one: the share of one may be lost alone.
void add_backward(Noise& noise, const Runs& runs, const std::vector<model::Parameter>& table) {
  for (const model::Parameter& p : table)
    for (size_t s = 0; s < runs.one.steps.size(); ++s)
      if (p.tied_to.empty() && runs.one.steps[s].gradients.contains(p.name))
        noise.add(fmt::format("gradients of {}", name_of(p.parameter_class)), p.name, s,
                  &StepResults::gradients,
                  p.parameter_class == model::ParameterClass::Experts ? size_t(p.shape[0]) : 1);
}

// How far the weights are apart before each step, relative to their length; of those that begin as zero, to the length
// of others.
std::vector<double> weights_apart(const LayoutRun& one, const LayoutRun& layout,
                                  const std::vector<model::Parameter>& table, double init_std) {
  std::vector<double> out = {0};
  for (size_t s = 0; s + 1 < one.steps.size(); ++s) {
    out.push_back(0);
    for (const model::Parameter& p : table) {
      if (!p.tied_to.empty()) continue;
      const Tensor& w = one.steps[s].weights.at(p.name);
      const double length =
          p.init == model::Init::Zeros ? init_std * std::sqrt(static_cast<double>(w.size())) : length_of(w);
      out.back() = std::max(out.back(), apart_of(w, layout.steps[s].weights.at(p.name)) / length);
    }
  }
  return out;
}

std::string verdict_of(const PrecisionReport& report) {
  std::string out;
  const auto say = [&](std::string text) { out += (out.empty() ? "" : "; ") + text; };
  if (!report.alone.fault.empty()) say("one rank against float64: " + report.alone.fault);
  if (!report.loads_equal) say("expert loads differ though the routing is given");
  if (!report.biases_equal) say("biases that balance experts differ though the routing is given");
  for (const PrecisionRow& r : report.rows)
    if (!r.passed())
      say(fmt::format("{} differ by {:.2g}, allowed {:.2g} ({})", r.what, r.difference, r.bound, r.worst));
  return out;
}

// Tokens of a step that are in no loss because their experts are too close to be told apart; 0 where enough are left.
int64_t too_many_close(const config::Config& c, const std::vector<Batch>& batches) {
  const int64_t all = c.train.num_microbatches * c.train.micro_batch * c.train.seq_len;
  for (const Batch& b : batches)
    if (b.loss_tokens * 4 < all) return all - b.valid_tokens;
  return 0;
}

// The model without the losses that count a token's experts by its logits.
void drop_counted_losses(config::MoeConfig& moe) {
  std::vector<std::string> kinds;
  for (const std::string& kind : moe.load_balancing)
    if (kind != "aux" && kind != "seq_aux" && kind != "global_aux") kinds.push_back(kind);
  moe.load_balancing = kinds.empty() ? std::vector<std::string>{"none"} : kinds;
  moe.aux_coef = {};
}

}  // namespace

OneRank::OneRank(const config::Config& config, const PrecisionOptions& options, const model::Mesh& pieces_of)
    : config_(config),
      float64_(config),
      seed_(options.seed),
      dtype_(options.narrow ? "bfloat16" : config.model.dtype) {
  if (dtype_ == "float64")
    base::fail(
        "model.dtype = \"float64\" has no roundings to measure against: the comparison in float64 is for it");
  if (config.moe.capacity_factor > 0 && config.moe.drop_policy == "probs")
    base::fail(
        "moe.drop_policy = \"probs\" with moe.capacity_factor = {}: which tokens a full expert keeps follows "
        "from probabilities, and roundings may turn that; needed moe.drop_policy = \"position\", or the "
        "comparison in float64",
        config.moe.capacity_factor);
  float64_.model.dtype = "float64";
  float64_.device.kind = "cpu";
  if (config.moe.num_experts > 0) float64_.moe.router_dtype = "float64";
  narrow_.num_steps = options.num_steps;
  narrow_.weights_each_step = true;
  narrow_.taps = {"x_out", "router_logits", "expert_probs"};
  if (config.moe.capacity_factor > 0) {
    mesh_.pieces = pieces_of.tp * pieces_of.cp;
    narrow_.pieces_of = pieces_of;
  }
  for (int64_t s = 1; s <= options.num_steps; ++s)
    narrow_.batches.push_back(random_batch(config, options.seed, s));
  exact_ = narrow_;
  exact_.routing = model::RoutingUse::Replay;
  exact_.weight = [this](const model::Parameter&, int64_t, double initial) { return stored(initial); };
  narrow_.narrow = options.narrow;
  if (options.narrow) narrow_.weight = exact_.weight;
  run();
  condition();
  judge();
}

// What products see of a weight before the first step.
double OneRank::stored(double initial) const {
  const float master = static_cast<float>(initial);
  return static_cast<double>(dtype_ == "bfloat16" ? tensor::join(tensor::split(master).high, 0) : master);
}

void OneRank::run() {
  // A batch that changes in a step changes the weights of the next, and what is predicted further ahead.
  narrow_.routing = model::RoutingUse::Record;
  while (true) {
    one_ = run_layout(config_, mesh_, {}, narrow_);
    exact_.replay.clear();
    for (const StepResults& s : one_.steps) exact_.replay.push_back(s.routing);
    exact_.batches = narrow_.batches;
    wide_ = run_layout(float64_, mesh_, {}, exact_);
    if (take_out_close_calls(config_, one_, wide_, narrow_.batches) == 0) break;
    if (const int64_t close = too_many_close(config_, narrow_.batches)) leave_out_counted_losses(close);
  }
  narrow_.routing = model::RoutingUse::Replay;
  narrow_.replay = exact_.replay;
  narrow_.pieces_of = {};
}

void OneRank::leave_out_counted_losses(int64_t too_close) {
  left_out_ = fmt::format(
      "auxiliary losses count the experts of a token by its logits, and for {} of {} tokens two are too "
      "close to be "
      "told apart in {} in one of {} layers: compared without these losses; the comparison in float64 has "
      "them",
      too_close, config_.train.num_microbatches * config_.train.micro_batch * config_.train.seq_len, dtype_,
      config_.model.num_layers);
  drop_counted_losses(config_.moe);
  drop_counted_losses(float64_.moe);
  for (int64_t s = 1; s <= narrow_.num_steps; ++s)
    narrow_.batches[static_cast<size_t>(s - 1)] = random_batch(config_, seed_, s);
}

void OneRank::condition() {
  kappa_ = conditioning(float64_, [this](const config::Config& c, const RunOptions& moved) {
    RunOptions options = exact_;
    options.weights_each_step = false;
    if (moved.weight)
      options.weight = [&](const model::Parameter& p, int64_t i, double initial) {
        return moved.weight(p, i, stored(initial));
      };
    return run_layout(c, mesh_, {}, options);
  });
}

void OneRank::judge() {
  const Rounding rounding = dtype_ == "bfloat16" ? bfloat16_rounding() : float32_rounding(config_);
  alone_ = inside_bound(config_, rounding, kappa_, wide_, one_);
}

PrecisionReport OneRank::verify(config::Config config, const model::Mesh& mesh,
                                const std::vector<model::Role>& roles, Fault fault) const {
  PrecisionReport out;
  out.dtype = dtype_;
  out.unit = dtype_ == "bfloat16" ? 0x1p-8 : 0x1p-24;
  out.alone = alone_;
  out.left_out = left_out_;
  if (!left_out_.empty()) drop_counted_losses(config.moe);
  out.budget = fit_budget(config, mesh, one_);
  RunOptions options = narrow_;
  options.fault = fault;
  const LayoutRun layout = run_layout(config, mesh, roles, options);
  const std::vector<model::Parameter> table = model::make_parameters(config_);
  const Comparison exact = compare(one_, layout, table);
  out.loads_equal = exact.load_equal, out.biases_equal = exact.bias_equal;
  out.factor = Noise::factor(mesh.world());
  const Runs runs{wide_, one_, layout, kappa_, weights_apart(one_, layout, table, config.model.init_std)};
  Noise noise(runs);
  add_forward(noise, runs, narrow_.batches);
  add_backward(noise, runs, table);
  out.rows = noise.rows(out.factor);
  const OwnResults own = from_own_gradients(config, layout);
  const auto add = [&](const char* what, const OwnResult& r) {
    out.rows.push_back({what, r.worst, r.difference, 0, r.bound, 0});
  };
  add("gradient norm, of its gradients", own.norm);
  add("clip factor, of its norm", own.clip);
  add("first moments, of its gradients", own.moment1);
  add("second moments, of its gradients", own.moment2);
  add("weights, of its gradients", own.weights);
  out.verdict = verdict_of(out);
  return out;
}

}  // namespace pleat::verify
