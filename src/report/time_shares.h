// Where the time of something went, as a table: name, milliseconds, share.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace pleat::report {

// Shares are of `total` seconds; parts that ran side by side may add up to more.
std::string time_shares(const std::string& title, const std::vector<std::pair<std::string, double>>& seconds,
                        double total);

}  // namespace pleat::report
