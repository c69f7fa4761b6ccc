#include "model/block/attention_attrs.h"

#include <cmath>

namespace pleat::model {

bool has_window(const config::ModelConfig& m, int layer) {
  return m.sliding_window > 0 &&
         m.window_layers[size_t(config::last_own_layer(m, layer)) % m.window_layers.size()] != 0;
}

program::AttrSet attention_attrs(const config::ModelConfig& m, int layer, int64_t parts) {
  return {{"heads", double(m.num_heads / parts)},
          {"kv_heads", double(m.num_kv_heads / parts)},
          {"head_dim", double(m.head_dim)},
          {"v_head_dim", double(m.attention == "mla" ? m.v_head_dim : m.head_dim)},
          {"scale", m.attention_scale > 0 ? m.attention_scale : 1.0 / std::sqrt(double(m.head_dim))},
          {"window", double(has_window(m, layer) ? m.sliding_window : 0)}};
}

}  // namespace pleat::model
