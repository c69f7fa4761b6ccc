// DeepSeek-V2 and -V3 (which is Kimi-K2 too): latent attention, leading dense layers, shared experts without
// a gate.
#include <cmath>

#include "base/error.h"
#include "family/config_reader.h"
#include "family/descriptions.h"
#include "model/rope.h"

namespace pleat::family {
namespace {

void read_common(ConfigReader& in, config::Config& c) {
  in.read_decoder(c);
  auto& m = c.model;
  auto& e = c.moe;
  in.require_flag("attention_bias", false);
  in.require_flag("mlp_bias", false);
  m.attention = "mla";
  m.q_lora_rank = in.integer("q_lora_rank", 0);
  m.kv_lora_rank = in.integer("kv_lora_rank");
  m.qk_nope_head_dim = in.integer("qk_nope_head_dim");
  m.qk_rope_head_dim = in.integer("qk_rope_head_dim");
  m.v_head_dim = in.integer("v_head_dim");
  m.num_kv_heads = m.head_dim = m.rotary_dim = 0;
  if (m.rope_type == "yarn") {
    // The temperature of the whole head goes into the softmax scale instead of the rotated part.
    if (const double all = in.rope_real("mscale_all_dim", 0); all != 0) {
      const double t = model::yarn_temperature(m.rope_factor, all);
      m.attention_scale = t * t / std::sqrt(double(m.qk_nope_head_dim + m.qk_rope_head_dim));
    }
  }
  in.read_experts(c, "moe_intermediate_size");
  m.leading_dense_layers = in.integer("first_k_dense_replace", 0);
  if (in.integer("moe_layer_freq", 1) != 1)
    base::fail("{}: moe_layer_freq = {} is not supported; needed is 1", in.source(),
               in.integer("moe_layer_freq", 1));
  if (m.leading_dense_layers > 0) m.ffn_hidden_size = in.integer("intermediate_size");
  e.shared_ffn_hidden_size = in.integer("n_shared_experts", 0) * e.ffn_hidden_size;
  e.scaling_factor = in.real("routed_scaling_factor", 1.0);
}

void read_groups(ConfigReader& in, config::Config& c, int64_t scores_per_group) {
  const int64_t groups = in.integer("n_group", 1);
  if (groups <= 1) return;
  c.moe.num_groups = groups;
  c.moe.group_topk = in.integer("topk_group", 1);
  c.moe.group_score_topk = scores_per_group;
}

}  // namespace

const Family kDeepseekV2 = {"deepseek_v2",
                            [](ConfigReader& in, config::Config& c) {
                              read_common(in, c);
                              c.model.rope_interleaved = true;
                              c.moe.pre_softmax = true;
                              if (c.moe.top_k > 1) c.moe.renormalize = false;
                              const std::string method = in.text("topk_method", "greedy");
                              if (method == "group_limited_greedy")
                                read_groups(in, c, 1);
                              else if (method != "greedy")
                                base::fail("{}: topk_method = \"{}\" is not supported", in.source(),
                                           method.substr(0, 60));
                            },
                            {}};

const Family kDeepseekV3 = {"deepseek_v3",
                            [](ConfigReader& in, config::Config& c) {
                              read_common(in, c);
                              c.model.rope_interleaved = in.flag("rope_interleave", true);
                              c.moe.score = "sigmoid";
                              const bool normalised = in.flag("norm_topk_prob", true);
                              // Without its _single form the switch means nothing for one expert per token.
                              if (c.moe.top_k > 1) c.moe.renormalize = normalised;
                              c.moe.renormalize_single = normalised && c.moe.top_k == 1;
                              // transformers adds the correction bias and never moves it.
                              c.moe.load_balancing = {"bias"};
                              c.moe.bias_update_rate = 0;
                              read_groups(in, c, 2);
                              c.model.num_mtp_layers = in.integer("num_nextn_predict_layers", 0);
                            },
                            {.mtp = true}};

}  // namespace pleat::family
