#include "exchange/golden_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "safetensors/convert.h"

namespace pleat::exchange::testing {

std::vector<double> numbers(const safetensors::File& file, const std::string& name) {
  const safetensors::TensorInfo& info = file.at(name);
  std::vector<std::byte> raw(static_cast<size_t>(info.num_bytes()));
  file.read(name, raw);
  std::vector<double> out(static_cast<size_t>(info.num_elements()));
  safetensors::decode(info.type, raw, std::span<double>(out));
  return out;
}

std::vector<int32_t> integers(const safetensors::File& file, const std::string& name) {
  const safetensors::TensorInfo& info = file.at(name);
  EXPECT_EQ(info.type, safetensors::ElementType::I32) << name;
  std::vector<int32_t> out(static_cast<size_t>(info.num_elements()));
  file.read(name, std::as_writable_bytes(std::span(out)));
  return out;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (!(std::abs(a[i] - b[i]) <= worst)) worst = std::abs(a[i] - b[i]);  // a NaN stays
    if (std::isnan(worst)) return worst;
  }
  return worst;
}

double relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    difference += (a[i] - b[i]) * (a[i] - b[i]), norm += b[i] * b[i];
  return std::sqrt(difference / (norm > 0 ? norm : 1));
}

}  // namespace pleat::exchange::testing
