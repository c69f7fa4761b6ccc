#include "family/config_reader.h"
#include "family/descriptions.h"

namespace pleat::family {

const Family kQwen2Moe = {"qwen2_moe",
                          [](ConfigReader& in, config::Config& c) {
                            in.read_decoder(c);
                            in.read_experts(c, "moe_intermediate_size");
                            c.model.qkv_bias = in.flag("qkv_bias", true);
                            c.moe.shared_ffn_hidden_size = in.integer("shared_expert_intermediate_size");
                            c.moe.shared_gate = true;
                            in.read_sparse_pattern(c);
                            if (config::num_moe_layers(c) < c.model.num_layers)
                              c.model.ffn_hidden_size = in.integer("intermediate_size");
                            in.read_windows(c, ConfigReader::WindowRule::AlternateBelow, 4096);
                            read_softmax_router(in, c, false);
                          },
                          {.shared = "mlp.shared_expert"},
                          0.001};

}  // namespace pleat::family
