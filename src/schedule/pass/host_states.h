// States of the optimizer that lie in the host's memory between two steps (`optimizer.state_space = "host"`).
//
// Ahead of each update its states are copied to the device, behind it they are copied back, in buckets: runs of updates whose
// states take `bucket_bytes` together. While a bucket is updated, the next one comes in on lane h2d and the one before goes out
// on lane d2h. A bucket comes in when the one two before it is out, so that the device has room for two. The first comes when
// the backward is over: before, activations need the memory. An update larger than a bucket is cut into pieces of whole
// blocks, where the rank holds all of the parameter; a share's update is not cut, and its bucket is as large as it.
//
// The host's value keeps the name; the device's is called NAME.device, of a piece NAME.device[i], and lies in its bucket. Exact: bytes are
// copied, and an element's update does not depend on the elements beside it.
#pragma once

#include "program/program.h"

namespace pleat::schedule {

bool has_device_states(const program::Program& program);
// In a program without updates only the space changes: all programs of a run keep states in the same place.
program::Program host_states(program::Program program, int64_t bucket_bytes);

}  // namespace pleat::schedule
