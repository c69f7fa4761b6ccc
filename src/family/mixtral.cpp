#include "family/config_reader.h"
#include "family/descriptions.h"

namespace pleat::family {

const Family kMixtral = {"mixtral",
                         [](ConfigReader& in, config::Config& c) {
                           in.read_decoder(c, {.rope_theta = 1e6, .norm_eps = 1e-5});
                           in.read_experts(c, "intermediate_size");
                           c.moe.input_jitter = in.real("router_jitter_noise", 0);
                           in.read_windows(c, ConfigReader::WindowRule::All, 0);
                           // Softmax over all experts, then over the chosen ones again: softmax of the chosen
                           // logits.
                           if (c.moe.top_k == 1) c.moe.pre_softmax = c.moe.renormalize_single = true;
                         },
                         {.router = "block_sparse_moe.gate",
                          .experts = "block_sparse_moe.experts",
                          .gate = "w1",
                          .up = "w3",
                          .down = "w2"},
                         0.001};

}  // namespace pleat::family
