// What the cases of fault_ranks.cpp have in common, whatever carries the ranks: operations, and how tables name them.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

namespace pleat::testing {

inline const std::vector<std::string> kFaultOperations = {
    "all_reduce",   "reduce_scatter", "reduce_scatter_v", "all_gather",
    "all_gather_v", "all_to_all_v",   "broadcast",        "barrier",
    "send",         "receive",        "send_receive",
};

inline bool is_message(const std::string& operation) {
  return operation == "send" || operation == "receive" || operation == "send_receive";
}

// As tables name it.
inline std::string recorded(const std::string& operation) {
  return operation.ends_with("_v") ? operation.substr(0, operation.size() - 2) : operation;
}

// The call rank 0 waits in.
inline std::string waiting(const std::string& operation) {
  if (operation == "send") return "group 'dp' receive #0 stage 'second' from rank 1";
  if (operation == "receive") return "group 'dp' send #0 stage 'second' to rank 1";
  return fmt::format("group 'dp' {} #{} stage 'second'", recorded(operation), is_message(operation) ? 0 : 1);
}

inline int ranks_for(const std::string& operation) {
  return is_message(operation) ? 2 : operation == "all_gather" || operation == "all_to_all_v" ? 4 : 3;
}

}  // namespace pleat::testing
