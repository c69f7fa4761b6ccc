#include "interpret/plan/routed.h"

#include <charconv>
#include <map>
#include <tuple>

namespace pleat::interpret {

std::vector<RoutedRows> routed_rows(std::span<const program::Program> programs, int64_t num_layers) {
  std::map<std::tuple<bool, int64_t, int64_t, int64_t>, RoutedRows> found;
  for (const program::Program& p : programs)
    for (const program::Value& v : p.values) {
      if (v.maximum_rows == 0) continue;
      // "mb0.L3.expert_rows"; a name without a layer counts for none.
      const size_t at = v.name.find(".L");
      const size_t end = at == std::string::npos ? at : v.name.find('.', at + 2);
      if (end == std::string::npos) continue;
      int layer = -1;
      std::from_chars(v.name.data() + at + 2, v.name.data() + end, layer);
      const bool prediction = layer >= num_layers;
      RoutedRows& rows = found[{prediction, v.expected_rows, v.shape[0], v.maximum_rows}];
      rows.prediction = prediction;
      rows.expected = v.expected_rows, rows.budget = v.shape[0], rows.maximum = v.maximum_rows;
      rows.layers.insert(layer);
      rows.values.insert(v.name.substr(end + 1));
    }
  std::vector<RoutedRows> out;
  for (auto& [key, rows] : found) out.push_back(std::move(rows));
  return out;
}

}  // namespace pleat::interpret
