#include "family/config_reader.h"
#include "family/descriptions.h"

namespace pleat::family {

const Family kLlama = {"llama",
                       [](ConfigReader& in, config::Config& c) {
                         in.read_decoder(c);
                         c.model.ffn_hidden_size = in.integer("intermediate_size");
                         c.model.qkv_bias = c.model.attn_out_bias = in.flag("attention_bias", false);
                         c.model.mlp_bias = in.flag("mlp_bias", false);
                       },
                       {}};

}  // namespace pleat::family
