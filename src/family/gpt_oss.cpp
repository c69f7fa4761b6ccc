#include "base/error.h"
#include "family/config_reader.h"
#include "family/descriptions.h"

namespace pleat::family {

const Family kGptOss = {"gpt_oss",
                        [](ConfigReader& in, config::Config& c) {
                          if (!in.has("rope_parameters") && !in.has("rope_scaling"))
                            base::fail("{}: key 'rope_parameters' is missing", in.source());
                          in.read_decoder(c, {.rope_theta = 150000, .norm_eps = 1e-5});
                          in.read_experts(c, "intermediate_size");
                          c.model.qkv_bias = c.model.attn_out_bias = in.flag("attention_bias", true);
                          c.model.attention_sinks = true;
                          c.model.activation = "clamped_swiglu";
                          in.require_real("swiglu_limit", 7.0);
                          in.require_real("swiglu_alpha", 1.702);
                          c.moe.expert_bias = true;
                          c.moe.router_bias = true;
                          in.read_windows(c, ConfigReader::WindowRule::Alternate, 128);
                          if (c.moe.top_k == 1) c.moe.pre_softmax = c.moe.renormalize_single = true;
                        },
                        {.router = "mlp.router", .fused_transposed = true, .model_router = "mlp.router"},
                        0.001};

}  // namespace pleat::family
