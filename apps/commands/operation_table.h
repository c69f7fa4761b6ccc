// Where the time went, as `pleat bench step` and `pleat bench layer` print it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/operation_times.h"

namespace pleat::apps {

// Operations that take less than a thousandth of the longest are left out.
std::string operation_table(const std::vector<bench::OperationTime>& times);
nlohmann::json operations_json(const std::vector<bench::OperationTime>& times);

}  // namespace pleat::apps
