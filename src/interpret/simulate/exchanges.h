// What a rank exchanges in a step, by operation, read off a timeline: bytes, time, and how much of that time
// was hidden behind work.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "interpret/trace/timeline.h"

namespace pleat::interpret {

// What counts as an exchange here: also stages that store into windows of other ranks.
inline bool goes_to_others(program::Op op) {
  return program::is_exchange(op) || program::class_of(op) == program::OpClass::Store;
}

struct Exchanged {
  std::string name, phase, group, lane;
  int64_t calls = 0;
  double bytes = 0;       // sent by this rank
  int64_t ns = 0;         // from start to end, waiting for partners not counted
  int64_t hidden_ns = 0;  // of it, while a lane of the compute resource held a stage that is no exchange
};

using SentBytes = std::function<double(const program::Program&, const program::Stage&)>;

// Rows in order of first appearance in the program; one per operation, phase, group and lane.
std::vector<Exchanged> exchanges(const program::Program& program, const Timeline& timeline,
                                 const SentBytes& sent);

}  // namespace pleat::interpret
