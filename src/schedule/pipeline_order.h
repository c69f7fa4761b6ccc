// In which order a pipeline rank computes its microbatches: pure tables, one function per schedule.
#pragma once

#include <vector>

namespace pleat::schedule {

struct Slot {
  bool forward = true;
  int microbatch = 0, chunk = 0;
  bool operator==(const Slot&) const = default;
};

struct PipelineShape {
  int num_ranks = 1;         // p
  int rank = 0;              // r, 0 first
  int num_microbatches = 1;  // m
  int num_chunks = 1;        // v
  int group = 0;             // N, microbatches a chunk computes before the next takes over; 0: p
};

// Warm-up of min(p - r - 1, m) forwards, then one forward and one backward in turn, then the rest of the
// backwards: p - r microbatches in flight.
std::vector<Slot> one_forward_one_backward(const PipelineShape& shape);

// Interleaved: m v virtual microbatches in groups of N, each group chunk by chunk; backwards take the chunks
// in reverse. Warm-up of 2 (p - r - 1) + (v - 1) N forwards, capped at m v. Throws unless N is in p..m and
// m mod N is 0 or at least p.
std::vector<Slot> interleaved(const PipelineShape& shape);

// The one that fits num_chunks.
std::vector<Slot> pipeline_order(const PipelineShape& shape);

}  // namespace pleat::schedule
