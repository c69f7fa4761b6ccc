// Typed access to a config.json: every missing or ill-typed key is an error that names it, and keys a family
// cannot honour are refused instead of ignored.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"

namespace pleat::family {

class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& json, std::string source) : json_(json), source_(std::move(source)) {}

  bool has(const char* key) const;  // present and not null
  int64_t integer(const char* key) const;
  int64_t integer(const char* key, int64_t otherwise) const;
  double real(const char* key, double otherwise) const;
  bool flag(const char* key, bool otherwise) const;
  std::string text(const char* key, const std::string& otherwise) const;
  std::vector<int64_t> integers(const char* key) const;
  std::vector<std::string> texts(const char* key) const;
  // Refuses a value other than the given one: the family's code knows no other.
  void require_text(const char* key, const std::string& value) const;
  void require_flag(const char* key, bool value) const;
  void require_real(const char* key, double value) const;
  void require_absent(const char* key) const;
  // A number inside rope_parameters or rope_scaling, whichever counts.
  double rope_real(const char* key, double otherwise) const;
  const std::string& source() const { return source_; }

  // What all families share: widths, heads, norm, vocabulary, padding token, tied head, rotary settings.
  struct Defaults {
    double rope_theta = 10000, norm_eps = 1e-6;
    int64_t padding_token = -1;
  };
  void read_decoder(config::Config& config) const { read_decoder(config, Defaults()); }
  void read_decoder(config::Config& config, const Defaults& defaults) const;
  // num_experts, top_k and expert width under whatever names the file has. No balancing: see
  // read_auxiliary_loss.
  void read_experts(config::Config& config, const char* width_key) const;
  // transformers adds the auxiliary loss to the loss where output_router_logits is set, and only there.
  void read_auxiliary_loss(config::Config& config, double default_coef) const;
  // decoder_sparse_step and mlp_only_layers.
  void read_sparse_pattern(config::Config& config) const;
  // sliding_window with layer_types. Files older than layer_types leave the layers to the family's rule.
  // A window below 1 on a layer that has one is refused: no token would see itself.
  enum class WindowRule : uint8_t {
    All,             // every layer
    Alternate,       // the first, third, ... layer
    AlternateBelow,  // use_sliding_window: the first, third, ... of the layers below max_window_layers
    From,            // use_sliding_window: the layers from max_window_layers on
    AllIfUsed,       // use_sliding_window: every layer
  };
  // `otherwise`: the window where the file does not name one; 0: none.
  void read_windows(config::Config& config, WindowRule rule, int64_t otherwise) const;

 private:
  const char* rope_key() const;
  void read_rope(config::Config& config, double default_theta) const;
  int64_t padding_token(int64_t vocab_size, int64_t otherwise) const;
  const nlohmann::json& json_;
  std::string source_;
};

}  // namespace pleat::family
