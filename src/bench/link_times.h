// What exchanges between ranks that are threads of this machine take, by operation, ranks and bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cost/cost_file.h"

namespace pleat::bench {

struct LinkOptions {
  std::vector<int> ranks = {2, 4};
  int64_t least_bytes = int64_t{1} << 10,
          most_bytes = int64_t{16} << 20;  // sent by a rank; by fours between them
  int repeats = 9;                         // of the largest; smaller ones more often
};

// all_gather, reduce_scatter, all_reduce, all_to_all, shift and send. Bytes are what a rank sends as cost::sent_bytes
// counts it: of n ranks (n - 1) / n of the largest value, twice that for an all_reduce, all of it for a shift or a
// message. Times are what an exchange adds to a round of work of all ranks, the slowest rank's median. More ranks than
// cores take turns.
std::vector<cost::LinkTime> measure_links(const LinkOptions& options,
                                          const std::function<void(const std::string&)>& note = {});

}  // namespace pleat::bench
