#include "model/mesh_rules.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"
#include "model/decoder.h"
#include "model/overflow.h"
#include "model/parameters.h"
#include "model/shard.h"
#include "model/state.h"
#include "program/limits.h"

namespace pleat::model {
namespace {

class Faults {
 public:
  void divides(const char* rule, int64_t size, const char* axis, int64_t ranks) {
    if (size % ranks != 0)
      add(rule, fmt::format("{} = {} does not divide by {} = {}", rule, size, axis, ranks));
  }
  void add(std::string rule, std::string text) { out_.push_back({std::move(rule), std::move(text)}); }
  bool none() const { return out_.empty(); }
  std::vector<LayoutFault> take() { return std::move(out_); }

 private:
  std::vector<LayoutFault> out_;
};

void attention_rules(const config::Config& c, const Mesh& m, Faults& f) {
  f.divides("model.num_heads", c.model.num_heads, "parallel.tp", m.tp);
  if (c.model.attention != "mla") f.divides("model.num_kv_heads", c.model.num_kv_heads, "parallel.tp", m.tp);
  if (c.model.ffn_hidden_size > 0)
    f.divides("model.ffn_hidden_size", c.model.ffn_hidden_size, "parallel.tp", m.tp);
  if (c.model.qk_norm && c.model.qk_norm_full && m.tp > 1)
    f.add("model.qk_norm_full",
          fmt::format("a norm over all heads at once needs them on one rank: parallel.tp = {}, needed 1",
                      m.tp));
  if (m.cp == 1) return;
  f.divides("train.seq_len", c.train.seq_len, "2 x parallel.cp", 2 * m.cp);
  if (m.context != ContextKind::AllToAll) return;
  constexpr const char* kHeadRanks = "parallel.tp x parallel.cp (parallel.context = \"alltoall\")";
  f.divides("model.num_heads over context", c.model.num_heads, kHeadRanks, m.tp * m.cp);
  if (c.model.attention != "mla")
    f.divides("model.num_kv_heads over context", c.model.num_kv_heads, kHeadRanks, m.tp * m.cp);
  if (c.model.attention_sinks)
    f.add("model.attention_sinks",
          "attention sinks need parallel.context = \"allgather\" or \"ring\" with several context ranks");
}

void expert_rules(const config::Config& c, const Mesh& m, Faults& f) {
  if (c.moe.num_experts == 0) {
    if (m.ep * m.etp > 1)
      f.add("experts",
            fmt::format("parallel.ep = {} and parallel.etp = {} need a model with experts", m.ep, m.etp));
    return;
  }
  f.divides("moe.num_experts", c.moe.num_experts, "parallel.ep", m.ep);
  f.divides("moe.ffn_hidden_size", c.moe.ffn_hidden_size, "parallel.etp", m.etp);
  if (c.moe.shared_ffn_hidden_size > 0)
    f.divides("moe.shared_ffn_hidden_size", c.moe.shared_ffn_hidden_size, "parallel.tp", m.tp);
  if (c.moe.expert_bias && m.etp > 1)
    f.add("moe.expert_bias",
          fmt::format("biases of experts need whole experts: parallel.etp = {}, needed 1", m.etp));
  const int64_t token_ranks = m.tp * m.cp * m.dp;
  if (balances_by(c, "sinkhorn") && m.tp * m.cp > 1)
    f.add("sinkhorn",
          fmt::format("Sinkhorn balances a whole microbatch on one rank: parallel.tp x parallel.cp = {}, "
                      "needed 1",
                      m.tp * m.cp));
  if (balances_by(c, "global_aux") && token_ranks > 1 && c.moe.global_aux_form == "running")
    f.add("moe.global_aux_form",
          "counts that grow microbatch by microbatch depend on how ranks share them: needed \"exact\"");
  if (balances_by(c, "global_aux") && m.pp > 1)
    f.add("global_aux with a pipeline",
          "the counts of all microbatches must be there before the first backward, which a pipeline does not "
          "wait "
          "for: parallel.pp must be 1");
  if (c.moe.aux_convention == "hf" && aux_coefficients(c).any() && m.pp > 1)
    f.add("moe.aux_convention", "the hf convention counts over all layers at once: parallel.pp must be 1");
  if (c.moe.aux_convention == "hf" && aux_coefficients(c).any() && c.model.num_mtp_layers > 0 &&
      m.tp * m.cp > 1)
    f.add(
        "moe.aux_convention with prediction layers",
        "the hf convention with model.num_mtp_layers > 0 needs whole microbatches on a rank: parallel.tp and "
        "parallel.cp must be 1");
}

// Blocks of codes are of the logical tensor: a rank holds whole ones.
void state_rules(const config::Config& c, const Mesh& m, Faults& f) {
  const int64_t block = unit_of(optimizer_of(c));
  if (block == 1) return;
  for (const Parameter& p : make_parameters(c)) {
    if (p.unit == 1) continue;
    const CutOf cut = uneven_cut(p, m, p.unit);
    if (cut.every == 0) continue;
    f.add("block8 moments",
          fmt::format(
              "{} is cut every {} elements ({} = {}), but its moments are kept in blocks of {}: needed a "
              "multiple of that, or optimizer.moment1_dtype and optimizer.moment2_dtype other than "
              "\"block8\"",
              p.name, cut.every, cut.key, cut.ranks, block));
    return;
  }
}

// Numbers one thread each of a GPU's kernels takes, 16 bytes at a time where rows allow it.
int64_t gpu_vectors(const config::Config& c, int64_t rows, int64_t width) {
  const int64_t wide = c.model.dtype == "bfloat16" ? 8 : 4;
  return base::checked_mul(rows, width % wide == 0 ? width / wide : width, "elements of a microbatch");
}

// Sizes the kernels do not take (program/limits.h) that depend on the number of ranks.
void kernel_rules(const config::Config& c, const Mesh& m, Faults& f) {
  const bool gpu = c.device.kind == "cuda";
  const int64_t tokens = c.train.micro_batch * c.train.seq_len / m.cp;
  const auto in_vectors = [&](const char* what, int64_t rows, int64_t width) {
    if (gpu && width > 0 && gpu_vectors(c, rows, width) > program::kMaxGpuVectors)
      f.add(what, fmt::format(
                      "{} rows of {} = {} are too many for a GPU's kernel; use fewer tokens in a microbatch",
                      rows, what, width));
  };
  in_vectors("model.ffn_hidden_size", tokens, c.model.ffn_hidden_size / m.tp);
  if (c.moe.num_experts == 0) return;
  in_vectors("moe.shared_ffn_hidden_size", tokens, c.moe.shared_ffn_hidden_size / m.tp);
  const int64_t rows = expert_rows(c, m).budget;
  in_vectors("moe.ffn_hidden_size", rows, c.moe.ffn_hidden_size / m.etp);
  const int64_t sources = m.size(program::Group::Dispatch);
  const int64_t choices = base::checked_mul(tokens / m.tp * c.moe.top_k, sources, "choices of all ranks");
  const bool gathers = sources > 1 && m.dispatcher == Dispatcher::AllGather;
  if (const int64_t most = gathers ? std::max(rows, choices) : rows; most > program::kMaxRows)
    f.add("routed rows",
          fmt::format(
              "the experts of a rank may get {} rows of {} ranks, at most {} are possible: use fewer tokens "
              "in a microbatch{}",
              most, sources, program::kMaxRows, gathers ? "" : ", or a moe.token_budget"));
  if (!gpu) return;
  if (m.exchange == RowExchange::Windows && !gathers && sources > program::kMaxWindowRanks)
    f.add("parallel.exchange",
          fmt::format("parallel.exchange = \"windows\" between {} ranks is more than a GPU takes: at most {}",
                      sources, program::kMaxWindowRanks));
  const int64_t own = c.moe.num_experts / m.ep;
  if (sources > 1 && c.moe.top_k > program::kMaxGpuChoices)
    f.add("moe.top_k",
          fmt::format("moe.top_k = {} with experts on several ranks is more than a GPU takes: at most {}",
                      c.moe.top_k, program::kMaxGpuChoices));
  if (c.model.dtype == "bfloat16" && own > program::kMaxGpuExperts)
    f.add("experts of a rank",
          fmt::format(
              "{} experts on a rank (moe.num_experts / parallel.ep = {} / {}) are more than a GPU takes in "
              "bfloat16: at most {}",
              own, c.moe.num_experts, m.ep, program::kMaxGpuExperts));
  if (gathers && c.moe.pad_to_capacity && own * sources > program::kMaxExperts)
    f.add("moe.pad_to_capacity",
          fmt::format(
              "padded rows of {} experts from {} ranks with parallel.dispatcher = \"allgather\": a GPU takes "
              "at most {} together",
              own, sources, program::kMaxExperts));
}

void step_rules(const config::Config& c, const Mesh& m, Faults& f) {
  const int64_t tokens = c.train.micro_batch * c.train.seq_len / m.cp;
  if (tokens % m.tp != 0)
    f.add("tokens of a microbatch",
          fmt::format("rows of a microbatch on one context rank = train.micro_batch x train.seq_len / "
                      "parallel.cp = {} x {} / {} = {} do not divide by parallel.tp = {}",
                      c.train.micro_batch, c.train.seq_len, m.cp, tokens, m.tp));
  if (c.train.num_microbatches % m.dp != 0)
    f.add("train.num_microbatches",
          fmt::format(
              "train.num_microbatches = {}, the number of the whole step, does not divide by the data "
              "replicas = ranks / (tp x cp x pp) = {} / ({} x {} x {}) = {}: set train.num_microbatches "
              "to a multiple of {}",
              c.train.num_microbatches, m.world(), m.tp, m.cp, m.pp, m.dp, m.dp));
  if (m.vpp > 1 && m.pp == 1)
    f.add("parallel.vpp", fmt::format("parallel.vpp = {} needs a pipeline: parallel.pp = 1", m.vpp));
  if (m.pp > 1 && c.train.order == "gpipe")
    f.add("train.order", "a pipeline runs 1F1B: train.order = \"gpipe\" needs parallel.pp = 1");
  const int64_t own = c.train.num_microbatches / m.dp;
  if (m.pp > 1 && c.train.order == "loop")
    f.add("train.order",
          "train.order = \"loop\" needs parallel.pp = 1: microbatches of a pipeline lie over each other, and "
          "none stands alone to be repeated");
  if (m.pp == 1 && c.train.order == "loop" && own < 4)
    f.add("train.order",
          fmt::format(
              "train.order = \"loop\" has no effect: it repeats what lies between the first and the last "
              "microbatch of a replica, and {} of train.num_microbatches / {} replicas are {}, needed 4 or "
              "more; remove it, or set \"1f1b\"",
              c.train.num_microbatches, m.dp, own));
  if (m.vpp > 1 && m.pp > 1 && (own < m.pp || own % m.pp != 0))
    f.add("microbatches of an interleaved pipeline",
          fmt::format(
              "{} microbatches per replica with parallel.vpp = {}: needed a multiple of parallel.pp = {}",
              own, m.vpp, m.pp));
}

}  // namespace

std::vector<LayoutFault> layout_faults(const config::Config& c, const Mesh& m) {
  Faults faults;
  attention_rules(c, m, faults);
  expert_rules(c, m, faults);
  step_rules(c, m, faults);
  if (faults.none()) state_rules(c, m, faults);
  // They divide by the sizes of the layout.
  if (faults.none()) kernel_rules(c, m, faults);
  return faults.take();
}

void require_layout(const config::Config& config, const Mesh& mesh) {
  const std::vector<LayoutFault> faults = layout_faults(config, mesh);
  if (faults.empty()) return;
  std::string text;
  for (const LayoutFault& f : faults) text += "\n  " + f.text;
  if (mesh.world() == 1) base::fail("this configuration cannot run:{}", text);
  base::fail("this configuration does not fit the layout:{}", text);
}

}  // namespace pleat::model
