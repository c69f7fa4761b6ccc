// What `pleat bench grouped` is asked on its standard input, a line each:
//   {"direction": "fwd", "in": 2048, "out": 1536, "rows": [1024, 980, 1044]}   bind this product
//   {"run": 3}                                                                 time it
#pragma once

#include <optional>
#include <string>

#include "bench/kernel_bench.h"

namespace pleat::bench {

struct GroupedRequest {
  std::optional<GroupedProduct> product;
  int runs = 0;  // where there is no product
};
// Throws naming the key that is missing, unknown or out of range.
GroupedRequest parse_grouped_request(const std::string& line);

}  // namespace pleat::bench
