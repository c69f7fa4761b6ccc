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

}  // namespace pleat::exchange::testing
