// Keys of [moe]: experts, router, load balancing, capacity.
#include <algorithm>

#include "config/schema.h"
#include "program/limits.h"

namespace pleat::config {

namespace {

template <class Field>
Key key(const char* name, Field MoeConfig::*field, std::string meaning) {
  return make_key(std::string("moe.") + name, &Config::moe, field, std::move(meaning));
}

Condition not_sinkhorn() {
  return {"moe.load_balancing is not [\"sinkhorn\"] (which has its own scores)",
          {"moe.load_balancing"},
          [](const Config& c) { return !balances_by(c, "sinkhorn"); }};
}

Condition has_capacity() {
  return {"moe.capacity_factor > 0", {"moe.capacity_factor"}, [](const Config& c) {
            return c.moe.capacity_factor > 0;
          }};
}

Condition spread_experts() {
  return {"parallel.ep > 1 (on one rank the rows are always tokens * top_k)",
          {"parallel.ep"},
          [](const Config& c) { return c.parallel.ep > 1; }};
}

Condition has_aux() {
  return {"moe.load_balancing holds \"aux\", \"seq_aux\" or \"global_aux\"",
          {"moe.load_balancing"},
          [](const Config& c) { return !aux_types(c).empty(); }};
}

Condition balanced_by(std::string type) {
  return {"moe.load_balancing holds \"" + type + "\"", {"moe.load_balancing"}, [type](const Config& c) {
            return balances_by(c, type);
          }};
}

void add_expert_keys(std::vector<Key>& keys) {
  using M = MoeConfig;
  keys.push_back(key("num_experts", &M::num_experts, "Routed experts per MoE layer. 0 makes the model dense.")
                     .range(0, program::kMaxExperts)
                     .see({"moe.top_k", "model.moe_layer_freq"}));
  keys.push_back(key("top_k", &M::top_k, "Experts each token is sent to; at most moe.num_experts.")
                     .range(1, 1024)
                     .when(has_experts())
                     .see({"moe.num_experts", "moe.pre_softmax"}));
  keys.push_back(key("ffn_hidden_size", &M::ffn_hidden_size,
                     "Inner width of each routed expert's SwiGLU. Has no default: it must be given when "
                     "moe.num_experts > 0.")
                     .range(0, 1 << 24)
                     .when(has_experts())
                     .see({"moe.shared_ffn_hidden_size", "model.ffn_hidden_size"}));
  keys.push_back(
      key("shared_ffn_hidden_size", &M::shared_ffn_hidden_size,
          "Inner width of the shared expert every token passes through. 0 means there is none; several "
          "shared experts are one of their summed width.")
          .range(0, 1 << 24)
          .when(has_experts())
          .see({"moe.shared_gate"}));
  keys.push_back(
      key("shared_gate", &M::shared_gate,
          "The shared expert's output is multiplied by sigmoid(x . w), one number per token (Qwen2-MoE).")
          .when(has_experts())
          .when(has_shared_expert()));
  keys.push_back(
      key("expert_bias", &M::expert_bias, "Biases on both matrices of every routed expert (gpt-oss).")
          .when(has_experts()));
}

void add_router_keys(std::vector<Key>& keys) {
  using M = MoeConfig;
  keys.push_back(
      key("score", &M::score,
          "How logits become scores. softmax: see moe.pre_softmax. sigmoid: each expert on its own "
          "(DeepSeek-V3). sqrtsoftplus: sqrt(softplus(logit)).")
          .one_of({"softmax", "sigmoid", "sqrtsoftplus"})
          .when(has_experts())
          .when(not_sinkhorn())
          .see({"moe.pre_softmax", "moe.renormalize", "moe.load_balancing"}));
  keys.push_back(
      key("pre_softmax", &M::pre_softmax,
          "Softmax over all experts before the choice; otherwise over the chosen ones after it. With "
          "top_k = 1 it must be true, or the probability would always be 1 and give no gradient.")
          .when(has_experts())
          .when(not_sinkhorn())
          .when({"moe.score = \"softmax\"",
                 {"moe.score"},
                 [](const Config& c) { return c.moe.score == "softmax"; }})
          .see({"moe.score", "moe.renormalize"}));
  keys.push_back(
      key("renormalize", &M::renormalize,
          "The probabilities of the chosen experts are divided by their sum. Softmax after the choice "
          "sums to 1 already. Megatron's pre-softmax models (DeepSeek-V2, Qwen2-57B) need false.")
          .when(has_experts())
          .when(not_sinkhorn())
          .when({"moe.top_k > 1 or moe.renormalize_single = true",
                 {"moe.top_k", "moe.renormalize_single"},
                 [](const Config& c) { return c.moe.top_k > 1 || c.moe.renormalize_single; }})
          .when({"moe.score is sigmoid or sqrtsoftplus, or moe.pre_softmax = true",
                 {"moe.score", "moe.pre_softmax"},
                 [](const Config& c) { return c.moe.score != "softmax" || c.moe.pre_softmax; }})
          .see({"moe.score", "moe.pre_softmax"}));
  keys.push_back(key("renormalize_single", &M::renormalize_single,
                     "Renormalise for top_k = 1 too, as Hugging Face does: every weight is then 1 and the "
                     "loss teaches the router nothing.")
                     .when(has_experts())
                     .when({"moe.top_k = 1", {"moe.top_k"}, [](const Config& c) { return c.moe.top_k == 1; }})
                     .see({"moe.renormalize"}));
  keys.push_back(key("scaling_factor", &M::scaling_factor,
                     "Multiplies the probabilities after normalisation (2.5 in DeepSeek-V3).")
                     .above(0, 1e6)
                     .when(has_experts()));
  keys.push_back(
      key("num_groups", &M::num_groups,
          "Group-limited choice: experts are split into this many equal groups, the best group_topk "
          "groups are kept, and the top_k experts come from those. 0 turns it off.")
          .range(0, 65536)
          .when(has_experts())
          .when(not_sinkhorn())
          .see({"moe.group_topk"}));
  keys.push_back(key("group_topk", &M::group_topk,
                     "Groups a token may choose from. A group's score is the sum of its best scores, see "
                     "moe.group_score_topk.")
                     .range(0, 65536)
                     .when(has_experts())
                     .when({"moe.num_groups > 0",
                            {"moe.num_groups"},
                            [](const Config& c) { return c.moe.num_groups > 0; }})
                     .see({"moe.num_groups", "moe.top_k"}));
  keys.push_back(key("group_score_topk", &M::group_score_topk,
                     "How many of a group's best scores are summed to its score. 0 means top_k / group_topk; "
                     "Hugging Face's "
                     "DeepSeek-V3 always sums 2, its DeepSeek-V2 takes 1.")
                     .range(0, 65536)
                     .when(has_experts())
                     .when({"moe.num_groups > 0",
                            {"moe.num_groups"},
                            [](const Config& c) { return c.moe.num_groups > 0; }})
                     .see({"moe.group_topk"}));
  keys.push_back(
      key("router_dtype", &M::router_dtype,
          "Type of router logits, scores and probabilities. A float64 model always has a float64 router. "
          "float64 "
          "is for the CPU.")
          .on_resume(OnResume::WithFlag)
          .one_of({"float32", "float64"})
          .when(has_experts())
          .when(
              {"model.dtype is not \"float64\" (a float64 model needs moe.router_dtype = \"float64\")",
               {"model.dtype"},
               [](const Config& c) { return c.model.dtype != "float64" || c.moe.router_dtype == "float64"; }})
          .see({"model.dtype"}));
  keys.push_back(
      key("router_bias", &M::router_bias,
          "A trained bias on the router's logits; not the balancing bias of load_balancing = \"bias\".")
          .when(has_experts()));
  keys.push_back(key("input_jitter", &M::input_jitter,
                     "In training, the router's input is multiplied by U(1 - x, 1 + x). 0 turns it off.")
                     .on_resume(OnResume::WithFlag)
                     .below(0, 1)
                     .when(has_experts()));
}

void add_balance_keys(std::vector<Key>& keys) {
  using M = MoeConfig;
  keys.push_back(
      key("load_balancing", &M::load_balancing,
          "What keeps experts evenly used; several may be listed. aux: loss over a microbatch. seq_aux: over "
          "each sequence. global_aux: with counts of the global batch. bias: DeepSeek-V3's bias on the "
          "choice, "
          "moved once per step. sinkhorn: balanced assignment, alone only. none: nothing, alone only.")
          .on_resume(OnResume::Never)
          .one_of({"none", "aux", "seq_aux", "global_aux", "sinkhorn", "bias"})
          .when(has_experts())
          .see({"moe.aux_coef", "moe.bias_update_rate", "moe.global_aux_form", "moe.aux_convention"}));
  keys.push_back(
      key("aux_coef", &M::aux_coef,
          "Weight of each auxiliary loss: one number per aux, seq_aux and global_aux in the order of "
          "moe.load_balancing.")
          .on_resume(OnResume::WithFlag)
          .range(0, 1e3)
          .when(has_experts())
          .when({"moe.load_balancing holds \"aux\", \"seq_aux\" or \"global_aux\" (without them only 0)",
                 {"moe.load_balancing"},
                 [](const Config& c) {
                   return !aux_types(c).empty() || std::all_of(c.moe.aux_coef.begin(), c.moe.aux_coef.end(),
                                                               [](double x) { return x == 0; });
                 }})
          .see({"moe.load_balancing", "moe.aux_convention"}));
  keys.push_back(key("global_aux_form", &M::global_aux_form,
                     "Counts of global_aux. running: mean over the microbatches seen so far in this step "
                     "(Megatron's). exact: of the whole global batch; needs train.order = \"gpipe\".")
                     .on_resume(OnResume::WithFlag)
                     .one_of({"running", "exact"})
                     .when(has_experts())
                     .when(balanced_by("global_aux"))
                     .see({"train.order", "moe.load_balancing"}));
  keys.push_back(
      key("bias_update_rate", &M::bias_update_rate,
          "How far the balancing bias of an expert moves per step, up when it had fewer tokens than the "
          "mean, down when more. 0 leaves the bias where it is, as transformers does with an imported model.")
          .on_resume(OnResume::WithFlag)
          .range(0, 1)
          .when(has_experts())
          .when(balanced_by("bias"))
          .see({"moe.load_balancing", "moe.score"}));
  keys.push_back(
      key("z_coef", &M::z_coef,
          "Weight of the mean squared logsumexp of the router's logits, which keeps them small. 0 turns "
          "it off; 1e-3 is usual.")
          .on_resume(OnResume::WithFlag)
          .range(0, 1e3)
          .when(has_experts()));
  keys.push_back(
      key("aux_convention", &M::aux_convention,
          "Scale of the aux loss. switch: Switch and Megatron, divided by top_k, one loss per layer. hf: "
          "transformers' load_balancing_loss_func, over all layers together; with load_balancing = "
          "\"aux\" only.")
          .on_resume(OnResume::WithFlag)
          .one_of({"switch", "hf"})
          .when(has_experts())
          .when(has_aux())
          .see({"moe.aux_coef", "moe.load_balancing"}));
}

void add_capacity_keys(std::vector<Key>& keys) {
  using M = MoeConfig;
  keys.push_back(
      key("capacity_factor", &M::capacity_factor,
          "An expert takes at most ceil(tokens * top_k / num_experts * factor) tokens of a microbatch and "
          "the rest are dropped. 0 is dropless.")
          .on_resume(OnResume::WithFlag)
          .range(0, 65536)
          .when(has_experts())
          .see({"moe.drop_policy", "moe.pad_to_capacity"}));
  keys.push_back(
      key("drop_policy", &M::drop_policy,
          "Which tokens a full expert keeps: those with the highest probability, or the first ones.")
          .on_resume(OnResume::WithFlag)
          .one_of({"probs", "position"})
          .when(has_experts())
          .when({"moe.capacity_factor > 0 or moe.overflow = \"drop\"",
                 {"moe.capacity_factor", "moe.overflow"},
                 [](const Config& c) { return c.moe.capacity_factor > 0 || c.moe.overflow == "drop"; }})
          .see({"moe.capacity_factor", "moe.overflow"}));
  keys.push_back(key("pad_to_capacity", &M::pad_to_capacity,
                     "Every expert works on exactly its capacity, with rows of probability 0 as filling.")
                     .on_resume(OnResume::WithFlag)
                     .when(has_experts())
                     .when(has_capacity())
                     .see({"moe.capacity_factor"}));
  keys.push_back(
      key("token_budget", &M::token_budget,
          "Memory for routed rows of one expert rank, as a multiple of the balanced share. 0 reserves "
          "the worst case.")
          .on_resume(OnResume::Free)
          .range(0, 65536)
          .when(has_experts())
          .when(spread_experts())
          .see({"moe.overflow", "parallel.ep"}));
  keys.push_back(
      key("overflow", &M::overflow,
          "A step in which an expert rank needs more rows than moe.token_budget has room for: stop the run, "
          "saying which budget would do; drop the rows that are too many, as moe.drop_policy says, from the "
          "fullest experts first; or rerun the step with room for all rows, experts recomputed.")
          .on_resume(OnResume::WithFlag)
          .one_of({"stop", "drop", "rerun"})
          .when(has_experts())
          .when({"moe.token_budget > 0",
                 {"moe.token_budget"},
                 [](const Config& c) { return c.moe.token_budget > 0; }})
          .see({"moe.token_budget", "moe.drop_policy"}));
  keys.push_back(
      key("force_routing", &M::force_routing,
          "For benchmarks only: logits are replaced by noise. balanced: all experts alike. skewed: plus a "
          "random bias per expert of standard deviation force_bias_std. loaded: one expert of each layer "
          "gets force_load times the mean, the others share the rest alike.")
          .on_resume(OnResume::WithFlag)
          .one_of({"none", "balanced", "skewed", "loaded"})
          .when(has_experts())
          .see({"moe.force_bias_std", "moe.force_load"}));
  keys.push_back(
      key("force_bias_std", &M::force_bias_std,
          "Standard deviation of the forced per-expert bias; negative draws it once per layer for the "
          "whole run.")
          .on_resume(OnResume::WithFlag)
          .range(-1e3, 1e3)
          .when(has_experts())
          .when({"moe.force_routing = \"skewed\"",
                 {"moe.force_routing"},
                 [](const Config& c) { return c.moe.force_routing == "skewed"; }})
          .see({"moe.force_routing"}));
  keys.push_back(
      key("force_load", &M::force_load,
          "Rows the loaded expert of a layer gets on average, over the mean of all experts. 1 is balanced; "
          "at moe.num_experts / moe.top_k every token chooses it.")
          .on_resume(OnResume::WithFlag)
          .range(1, 4096)
          .when(has_experts())
          .when({"moe.force_routing = \"loaded\"",
                 {"moe.force_routing"},
                 [](const Config& c) { return c.moe.force_routing == "loaded"; }})
          .see({"moe.force_routing"}));
}

}  // namespace

Condition has_experts() {
  return {"moe.num_experts > 0", {"moe.num_experts"}, [](const Config& c) { return c.moe.num_experts > 0; }};
}

Condition has_shared_expert() {
  return {"moe.shared_ffn_hidden_size > 0", {"moe.shared_ffn_hidden_size"}, [](const Config& c) {
            return c.moe.shared_ffn_hidden_size > 0;
          }};
}

bool balances_by(const Config& config, std::string_view type) {
  const auto& types = config.moe.load_balancing;
  return std::find(types.begin(), types.end(), type) != types.end();
}

std::vector<std::string> aux_types(const Config& config) {
  std::vector<std::string> out;
  for (const std::string& type : config.moe.load_balancing)
    if (type.ends_with("aux")) out.push_back(type);
  return out;
}

std::vector<Key> moe_keys() {
  std::vector<Key> keys;
  add_expert_keys(keys);
  add_router_keys(keys);
  add_balance_keys(keys);
  add_capacity_keys(keys);
  return keys;
}

}  // namespace pleat::config
