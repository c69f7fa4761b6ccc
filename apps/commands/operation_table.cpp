#include "operation_table.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "report/table.h"

namespace pleat::apps {

std::string operation_table(const std::vector<bench::OperationTime>& times) {
  report::Table table({{"operation"},
                       {"times", report::Align::Right},
                       {"ms", report::Align::Right},
                       {"us each", report::Align::Right},
                       {"TFLOP/s", report::Align::Right},
                       {"floor ms", report::Align::Right},
                       {"floor / time", report::Align::Right}});
  for (const bench::OperationTime& t : times) {
    if (t.seconds < 1e-3 * times.front().seconds) continue;
    table.add_row({t.name, std::to_string(t.count), fmt::format("{:.3f}", t.seconds * 1e3),
                   fmt::format("{:.1f}", t.seconds * 1e6 / double(t.count)),
                   t.flops > 1e9 ? fmt::format("{:.0f}", t.flops / t.seconds / 1e12) : "",
                   t.floor_seconds > 0 ? fmt::format("{:.3f}", t.floor_seconds * 1e3) : "",
                   t.floor_seconds > 0 ? fmt::format("{:.0f} %", 100 * t.floor_seconds / t.seconds) : ""});
  }
  return table.text();
}

nlohmann::json operations_json(const std::vector<bench::OperationTime>& times) {
  nlohmann::json out = nlohmann::json::array();
  for (const bench::OperationTime& t : times)
    out.push_back({{"name", t.name},
                   {"count", t.count},
                   {"ms", t.seconds * 1e3},
                   {"flops", t.flops},
                   {"floor_ms", t.floor_seconds * 1e3}});
  return out;
}

}  // namespace pleat::apps
