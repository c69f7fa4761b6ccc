// Reading and comparing what a probe and another implementation wrote.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "safetensors/file.h"

namespace pleat::exchange::testing {

std::vector<double> numbers(const safetensors::File& file, const std::string& name);
std::vector<int32_t> integers(const safetensors::File& file, const std::string& name);  // I32

// NaN as soon as one number is.
double largest_difference(const std::vector<double>& a, const std::vector<double>& b);
// ||a - b|| / ||b||; absolute where b is all zero.
double relative_difference(const std::vector<double>& a, const std::vector<double>& b);

// The experts a run chose, judged by the logits of a wider run that followed its choices, so that the two differ by
// roundings alone at every token of every layer.
struct JudgedRouting {
  double logits = 0;  // norm-wise difference of router logits, of the worst layer
  int64_t num_choices = 0,
          num_other = 0;  // tokens x layers; those where the wider logits would choose otherwise
  int64_t num_close = 0;  // those where three times the difference to be expected of two logits could do that
  std::string fault;      // the first choice that no error of a logit met in its layer explains; "": none
};
// Both files written with ProbeOptions::routing, `wide` with routing_from = `run`.
JudgedRouting judge_routing(const std::string& model_folder, const safetensors::File& run,
                            const safetensors::File& wide);

}  // namespace pleat::exchange::testing
