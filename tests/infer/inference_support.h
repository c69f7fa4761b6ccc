// Small models with random weights, for use without training.
#pragma once

#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "infer/inference.h"
#include "infer/next_token.h"

namespace pleat::infer::testing {

// Every weight from its name and element: the same in any Inference of the same model, large enough that
// routing and attention differ from token to token.
void fill_weights(Inference& model);

struct ModelCase {
  std::string name, toml;
  friend std::ostream& operator<<(std::ostream& out, const ModelCase& c) { return out << c.name; }
};
// One per kind of attention, rotation, window and expert layer.
std::vector<ModelCase> model_cases();
config::Config case_config(const ModelCase& model_case, const std::string& dtype, int threads = 2);

std::vector<int32_t> random_tokens(int64_t count, int64_t vocab, uint64_t seed);

// Logits by (sequence, position).
using Logits = std::map<std::pair<int64_t, int64_t>, std::vector<double>>;
// Appends the lists one after the other and keeps the logits of every position.
Logits logits_of(NextToken& model, const std::vector<std::vector<std::vector<int32_t>>>& appends);
double largest_difference(const Logits& a, const Logits& b);

}  // namespace pleat::infer::testing
