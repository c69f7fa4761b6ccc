// Text from a model: a host loop over the logits program, one token at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "train/programs.h"

namespace pleat::train {

struct GenerateOptions {
  int64_t max_tokens = 200;
  double temperature = 0.8;  // 0: the most likely token
  int64_t top_k = 0;         // 0: all
  double top_p = 1.0;
  int64_t seed = 0;
  int32_t stop_token = -1;  // generation ends before this token; -1: never
};

// Continues `prompt` (at least one token). `programs` must hold the logits program; the context is the last
// seq_len tokens. `each` sees every new token as it is drawn. Deterministic for a seed.
std::vector<int32_t> generate(Programs& programs, const std::vector<int32_t>& prompt,
                              const GenerateOptions& options, const std::function<void(int32_t)>& each = {});

// One draw: exposed for tests. `uniform` in [0, 1).
int32_t choose_token(const std::vector<double>& logits, const GenerateOptions& options, double uniform);

}  // namespace pleat::train
