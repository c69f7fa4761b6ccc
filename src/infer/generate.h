// Text from a model: a host loop that draws a token for every sequence of a batch and appends it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "infer/next_token.h"
#include "runtime/programs.h"

namespace pleat::infer {

struct GenerateOptions {
  int64_t max_tokens = 200;
  double temperature = 0.8;  // 0: the most likely token
  int64_t top_k = 0;         // 0: all
  double top_p = 1.0;
  int64_t seed = 0;
  std::vector<int32_t> stop_tokens;  // generation ends before any of these
};

enum class Finish : uint8_t { Length, StopToken, Stopped };

struct Generation {
  std::vector<int32_t> tokens;  // drawn, without the prompt and without a stop token
  Finish finish = Finish::Length;
};

struct GenerateTimes {
  int64_t prompt_tokens = 0, new_tokens = 0;
  double prefill_seconds = 0, decode_seconds = 0;
};

// Sees every token as it is drawn; false ends the sequence (Finish::Stopped), the token still counts.
using EachToken = std::function<bool(size_t prompt_idx, int32_t token)>;

// Continues every prompt (each at least one token), at most model.num_sequences() of them. What was in
// `model` before is forgotten. The draw of the i-th new token of prompt p depends on the seed, on first_index
// + p, on i and on the logits alone, so a prompt's text does not change with the batch it is in (up to
// rounding of the logits). A sequence that reaches the maximum length ends there.
std::vector<Generation> generate(NextToken& model, const std::vector<std::vector<int32_t>>& prompts,
                                 const GenerateOptions& options, uint32_t first_index = 0,
                                 const EachToken& each = {}, GenerateTimes* times = nullptr);

// The same for one prompt over the logits program that `programs` must hold, inside a training run's own
// memory: no cache, the context is the last seq_len tokens.
std::vector<int32_t> generate(runtime::Programs& programs, const std::vector<int32_t>& prompt,
                              const GenerateOptions& options, const std::function<void(int32_t)>& each = {});

// Throws unless temperature, top-k and top-p are in range.
void check_sampling(const GenerateOptions& options);

// One draw. `uniform` in [0, 1); tokens are laid out on it from the most likely one down, of equals the
// smaller id first.
int32_t choose_token(const std::vector<double>& logits, const GenerateOptions& options, double uniform);

}  // namespace pleat::infer
