// The same cases for every carrier: a driver calls these on each rank, whatever the ranks are.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace pleat::testing {

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& v) {
  return std::as_bytes(std::span(v));
}
template <class T>
std::span<std::byte> bytes_of(std::vector<T>& v) {
  return std::as_writable_bytes(std::span(v));
}

// Element i of rank r: values whose sums need every bit, so that another order or another rounding shows.
template <class T>
T value_at(int rank, int64_t i);

// ((r0 + r1) + r2) ... as communicator.h says it, one element, written apart from the code under test.
template <class T>
T reduced(const std::vector<T>& by_rank, comm::Reduce reduce);

std::vector<int> all_of(int size);  // 0, 1, ...

// Runs every collective and message pattern with known answers, of many sizes, types and both placements.
// Returns
// "" or what was wrong first; appends all results to `digest`, which must be the same over every carrier.
// Native: sums of floats have an order of the carrier's, and lie inside what rounding them may cost.
enum class Sums : bool { Ordered, Native };
std::string run_cases(comm::Communicator& c, std::string& digest, Sums sums = Sums::Ordered);

}  // namespace pleat::testing
