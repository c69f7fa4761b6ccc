#include "interpret/plan/routed.h"

#include <map>
#include <tuple>

#include "program/value_name.h"

namespace pleat::interpret {

std::vector<RoutedRows> routed_rows(std::span<const program::Program> programs, int64_t num_layers) {
  std::map<std::tuple<bool, int64_t, int64_t, int64_t>, RoutedRows> found;
  for (const program::Program& p : programs)
    for (const program::Value& v : p.values) {
      // Column codes have blocks where others have rows; what waits on the host is a copy.
      if (v.maximum_rows == 0 || v.space == program::Space::Pinned || v.layer < 0 ||
          what_of(v).find(".columns") != std::string_view::npos)
        continue;
      const bool prediction = v.layer >= num_layers;
      RoutedRows& rows = found[{prediction, v.expected_rows, v.shape[0], v.maximum_rows}];
      rows.prediction = prediction;
      rows.expected = v.expected_rows, rows.budget = v.shape[0], rows.maximum = v.maximum_rows;
      rows.layers.insert(v.layer);
      rows.values.emplace(what_of(v));
    }
  std::vector<RoutedRows> out;
  for (auto& [key, rows] : found) out.push_back(std::move(rows));
  return out;
}

}  // namespace pleat::interpret
