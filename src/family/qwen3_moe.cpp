#include "family/config_reader.h"
#include "family/descriptions.h"

namespace pleat::family {

const Family kQwen3Moe = {"qwen3_moe",
                          [](ConfigReader& in, config::Config& c) {
                            in.read_decoder(c);
                            in.read_experts(c, "moe_intermediate_size");
                            c.model.qk_norm = true;
                            c.model.qkv_bias = c.model.attn_out_bias = in.flag("attention_bias", false);
                            in.read_sparse_pattern(c);
                            if (config::num_moe_layers(c) < c.model.num_layers)
                              c.model.ffn_hidden_size = in.integer("intermediate_size");
                            in.read_windows(c, ConfigReader::WindowRule::AllIfUsed, 4096);
                            read_softmax_router(in, c, false);
                          },
                          {},
                          0.001};

}  // namespace pleat::family
