#include "train/code_health.h"

#include "program/code_rows.h"
#include "program/step_values.h"

namespace pleat::train {

std::vector<report::CodeHealth> code_health(const interpret::Executor& executor) {
  namespace step = program::step;
  std::vector<report::CodeHealth> out;
  if (!executor.has(step::code_counts)) return out;
  const auto counts = executor.at(step::code_counts);
  const auto largest = executor.at(step::code_largest);
  for (int m = 0; m < program::kNumCodeModules; ++m)
    for (int s = 0; s < program::kNumCodeSides; ++s) {
      const auto module = static_cast<program::CodeModule>(m);
      const auto side = static_cast<program::CodeSide>(s);
      const auto row = static_cast<size_t>(code_row(module, side));
      const auto of = counts.subspan(row * program::kNumCodeCounts, program::kNumCodeCounts);
      if (of[0] == 0) continue;
      out.push_back({std::string(name_of(module)), std::string(name_of(side)), of[0], of[1], of[2], of[3],
                     largest[row]});
    }
  return out;
}

}  // namespace pleat::train
