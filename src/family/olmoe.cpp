#include "family/config_reader.h"
#include "family/descriptions.h"

namespace pleat::family {

const Family kOlmoe = {"olmoe",
                       [](ConfigReader& in, config::Config& c) {
                         in.read_decoder(c, {.norm_eps = 1e-5, .padding_token = 1});
                         in.require_absent("clip_qkv");
                         in.read_experts(c, "intermediate_size");
                         c.model.qk_norm = c.model.qk_norm_full = true;
                         c.model.qkv_bias = c.model.attn_out_bias = in.flag("attention_bias", false);
                         read_softmax_router(in, c, false);
                       },
                       {},
                       0.01};

}  // namespace pleat::family
