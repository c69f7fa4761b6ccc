#include "report/time_shares.h"

#include <fmt/format.h>

#include "report/table.h"

namespace pleat::report {

std::string time_shares(const std::string& title, const std::vector<std::pair<std::string, double>>& seconds,
                        double total) {
  Table table({{title}, {"ms", Align::Right}, {"share", Align::Right}});
  for (const auto& [name, part] : seconds)
    table.add_row({name, fmt::format("{:.3f}", part * 1e3), fmt::format("{:.1f} %", 100 * part / total)});
  return table.text();
}

}  // namespace pleat::report
