#include "family/config_reader.h"
#include "family/descriptions.h"

namespace pleat::family {

const Family kQwen3 = {"qwen3",
                       [](ConfigReader& in, config::Config& c) {
                         in.read_decoder(c);
                         c.model.ffn_hidden_size = in.integer("intermediate_size");
                         c.model.qk_norm = true;
                         c.model.qkv_bias = c.model.attn_out_bias = in.flag("attention_bias", false);
                         in.read_windows(c, ConfigReader::WindowRule::From, 4096);
                       },
                       {}};

}  // namespace pleat::family
