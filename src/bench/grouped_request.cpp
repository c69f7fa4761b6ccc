#include "bench/grouped_request.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace pleat::bench {
namespace {

using nlohmann::json;

int64_t integer(const json& value, const std::string& what, int64_t low, int64_t high) {
  if (!value.is_number_integer()) base::fail("request: {} must be an integer, got {}", what, value.dump());
  const int64_t number = value.get<int64_t>();
  if (number < low || number > high)
    base::fail("request: {} is {}, needed {} to {}", what, number, low, high);
  return number;
}

program::Phase phase_of(const json& value) {
  if (value == "fwd") return program::Phase::Forward;
  if (value == "dgrad") return program::Phase::BackwardInput;
  if (value == "wgrad") return program::Phase::BackwardWeight;
  base::fail("request: direction is {}, needed \"fwd\", \"dgrad\" or \"wgrad\"", value.dump());
}

}  // namespace

GroupedRequest parse_grouped_request(const std::string& line) {
  const json j = json::parse(line, nullptr, false);
  if (!j.is_object()) base::fail("request '{}' is not a JSON object", line.substr(0, 80));
  const auto only = [&](std::initializer_list<const char*> keys) {
    for (const char* key : keys)
      if (!j.contains(key)) base::fail("request: key '{}' is missing", key);
    for (const auto& [key, value] : j.items())
      if (std::find(keys.begin(), keys.end(), key) == keys.end())
        base::fail("request: unknown key '{}'", key);
  };
  GroupedRequest out;
  if (j.contains("run")) {
    only({"run"});
    out.runs = static_cast<int>(integer(j["run"], "run", 1, 1000));
    return out;
  }
  only({"direction", "in", "out", "rows"});
  GroupedProduct& p = out.product.emplace();
  p.name = line;
  p.phase = phase_of(j["direction"]);
  constexpr int64_t kMostWidth = 1 << 20, kMostRows = 1 << 24;
  p.width_in = integer(j["in"], "in", 1, kMostWidth);
  p.width_out = integer(j["out"], "out", 1, kMostWidth);
  if (!j["rows"].is_array() || j["rows"].empty())
    base::fail("request: rows must be a list with the rows of each group");
  int64_t sum = 0;
  for (const json& rows : j["rows"])
    sum += p.rows_of.emplace_back(integer(rows, "an entry of rows", 0, kMostRows));
  integer(sum, "the sum of rows", 1, kMostRows);
  return out;
}

}  // namespace pleat::bench
