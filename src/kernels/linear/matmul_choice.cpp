#include "kernels/linear/matmul_choice.h"

#include <fmt/format.h>

namespace pleat::kernels {

std::string layout_of(const MatmulKey& key) {
  return {key.transpose_a ? 'T' : 'N', key.transpose_b ? 'T' : 'N'};
}

std::string text_of(const MatmulKey& key) {
  return fmt::format("{}x{}x{} {} {}->{}{}{}", key.m, key.n, key.k, layout_of(key), tensor::name_of(key.in),
                     tensor::name_of(key.out), key.adds ? " add" : "", key.bias ? " bias" : "");
}

std::optional<size_t> fastest(std::span<const std::optional<double>> seconds) {
  std::optional<size_t> best;
  for (size_t i = 0; i < seconds.size(); ++i)
    if (seconds[i] && (!best || *seconds[i] < *seconds[*best])) best = i;
  return best;
}

}  // namespace pleat::kernels
