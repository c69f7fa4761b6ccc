#include "base/error.h"
#include "config/schema.h"
#include "config/validate.h"

namespace pleat::config {

namespace {

void check_choice(const MoeConfig& m, bool sinkhorn) {
  if (m.ffn_hidden_size == 0)
    base::fail("moe.ffn_hidden_size is needed: moe.num_experts = {} experts have no width yet",
               m.num_experts);
  if (m.top_k > m.num_experts)
    base::fail("moe.top_k = {} is more than moe.num_experts = {}; at most {} is possible", m.top_k,
               m.num_experts, m.num_experts);
  if (m.top_k == 1 && m.score == "softmax" && !m.pre_softmax && !sinkhorn)
    base::fail(
        "moe.top_k = 1 with softmax after the choice always gives probability 1 and so no gradient to the "
        "router; "
        "set moe.pre_softmax = true (or moe.score = \"sigmoid\", or moe.top_k = 2)");
}

void check_groups(const MoeConfig& m) {
  if (m.num_groups == 0) return;
  if (m.num_groups == 1)
    base::fail("moe.num_groups = 1 limits nothing; needed is at least 2, or 0 for no groups");
  if (m.num_experts % m.num_groups != 0)
    base::fail("moe.num_groups = {} does not divide moe.num_experts = {}; groups must be of equal size",
               m.num_groups, m.num_experts);
  if (m.group_topk < 1 || m.group_topk > m.num_groups)
    base::fail("moe.group_topk = {} with moe.num_groups = {}; needed is 1 to {}", m.group_topk, m.num_groups,
               m.num_groups);
  if (m.group_score_topk == 0 && m.group_topk > m.top_k)
    base::fail(
        "moe.group_topk = {} is more than moe.top_k = {}: a group's score would be the sum of no scores; at "
        "most {} "
        "is possible",
        m.group_topk, m.top_k, m.top_k);
  const int64_t group_size = m.num_experts / m.num_groups;
  if (m.group_score_topk > group_size)
    base::fail(
        "moe.group_score_topk = {} is more than the {} experts of a group (moe.num_experts = {}, "
        "moe.num_groups = {}); at most {} is possible",
        m.group_score_topk, group_size, m.num_experts, m.num_groups, group_size);
  const int64_t reachable = m.group_topk * group_size;
  if (m.top_k > reachable)
    base::fail(
        "moe.top_k = {} is more than the {} experts of moe.group_topk = {} groups of {}; raise "
        "moe.group_topk to {}",
        m.top_k, reachable, m.group_topk, group_size,
        (m.top_k * m.num_groups + m.num_experts - 1) / m.num_experts);
}

void check_alone(const MoeConfig& m, const Config& c, const char* type) {
  if (balances_by(c, type) && m.load_balancing.size() > 1)
    base::fail("moe.load_balancing = {}: \"{}\" stands alone; write [\"{}\"], or leave it out",
               to_text(m.load_balancing), type, type);
}

void check_balancing(const Config& c) {
  const MoeConfig& m = c.moe;
  if (m.load_balancing.empty())
    base::fail("moe.load_balancing = [] is empty; write [\"none\"] to balance by nothing");
  check_alone(m, c, "none");
  check_alone(m, c, "sinkhorn");
  const std::vector<std::string> aux = aux_types(c);
  if (!aux.empty() && aux.size() != m.aux_coef.size())
    base::fail(
        "moe.aux_coef = {} holds {} numbers, but moe.load_balancing = {} has {} auxiliary losses; give one "
        "number "
        "for each",
        to_text(m.aux_coef), m.aux_coef.size(), to_text(m.load_balancing), aux.size());
  if (balances_by(c, "bias") && m.score == "softmax")
    base::fail(
        "moe.load_balancing holds \"bias\", which needs scores that do not depend on each other; set "
        "moe.score = "
        "\"sigmoid\" (now \"softmax\"), or balance by \"aux\"");
  if (m.aux_convention == "hf" && aux != std::vector<std::string>{"aux"})
    base::fail(
        "moe.aux_convention = \"hf\" is defined for \"aux\" only, but moe.load_balancing = {}; use "
        "\"switch\", or leave "
        "the others out",
        to_text(m.load_balancing));
  if (balances_by(c, "global_aux") && m.global_aux_form == "exact" && c.train.order != "gpipe")
    base::fail(
        "moe.global_aux_form = \"exact\" needs the counts of all microbatches before the first backward: set "
        "train.order = \"gpipe\" (now \"{}\"), or moe.global_aux_form = \"running\"",
        c.train.order);
  if (balances_by(c, "global_aux") && m.global_aux_form == "running" && c.train.order == "gpipe")
    base::fail(
        "moe.global_aux_form = \"running\" has no meaning with train.order = \"gpipe\", where the counts of "
        "all microbatches "
        "are known before the first backward: set moe.global_aux_form = \"exact\"");
}

// The bias that gives an expert its load holds where the largest logits are chosen and nothing else enters.
void check_forced_load(const Config& c) {
  const double most = double(c.moe.num_experts) / double(c.moe.top_k);
  if (c.moe.force_load > most)
    base::fail(
        "moe.force_load = {} is more than every token can give one expert: at most moe.num_experts / "
        "moe.top_k = {}",
        c.moe.force_load, most);
  if (c.moe.group_topk > 0)
    base::fail("moe.force_routing = \"loaded\" does not go with moe.group_topk = {}; set it to 0",
               c.moe.group_topk);
  for (const char* type : {"sinkhorn", "bias"})
    if (balances_by(c, type))
      base::fail(
          "moe.force_routing = \"loaded\" does not go with moe.load_balancing = \"{}\", which would balance "
          "the load again",
          type);
}

}  // namespace

void validate_moe(const Config& c) {
  check_choice(c.moe, balances_by(c, "sinkhorn"));
  check_groups(c.moe);
  check_balancing(c);
  if (c.moe.token_budget > 0 && c.moe.pad_to_capacity)
    base::fail(
        "moe.token_budget = {} with moe.pad_to_capacity = true: padded experts always have the same rows; "
        "remove one of the two",
        c.moe.token_budget);
  if (c.moe.force_routing == "skewed" && c.moe.force_bias_std == 0)
    base::fail(
        "moe.force_routing = \"skewed\" with moe.force_bias_std = 0 is not skewed; give a standard "
        "deviation, or use "
        "\"balanced\"");
  if (c.moe.force_routing == "loaded") check_forced_load(c);
}

}  // namespace pleat::config
