#include "family/config_reader.h"
#include "family/descriptions.h"

namespace pleat::family {

const Family kGptOss = {"gpt_oss",
                        [](ConfigReader& in, config::Config& c) {
                          in.read_decoder(c);
                          in.read_experts(c, "intermediate_size");
                          c.model.qkv_bias = c.model.attn_out_bias = in.flag("attention_bias", true);
                          c.model.attention_sinks = true;
                          c.model.activation = "clamped_swiglu";
                          in.require_real("swiglu_limit", 7.0);
                          in.require_real("swiglu_alpha", 1.702);
                          c.moe.expert_bias = true;
                          c.moe.router_bias = true;
                          in.read_windows(c, ConfigReader::WindowRule::Alternate);
                          if (c.moe.top_k == 1) c.moe.pre_softmax = c.moe.renormalize_single = true;
                        },
                        {.router = "mlp.router", .fused_transposed = true, .model_router = "mlp.router"}};

}  // namespace pleat::family
