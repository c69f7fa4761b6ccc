// How much memory of a GPU NCCL takes for the groups of a program: the line of the plan that is not ours to place.
//
// An estimate, by the library's own sizes. It makes a communicator per group and lane, and for each the connections that
// its calls need, when they first need them: rings for gathers and scatters, rings and trees for sums, which share the
// connections they have in common, and one connection per peer for messages and all-to-alls. A connection has, on each of
// its channels, a receive buffer for each of the three protocols and what its sender keeps, one granule. What a run has
// really taken is measured (summary.json, nccl_measured_bytes, beside nccl_planned_bytes).
//
// It rests on one measured point: four ranks that shared one GPU took 2.76 times what the connections of their
// collectives add up to (docs/measurements.md, "One H200"); `collectives_over_sum` is that. Had they 64 channels, the
// most the library makes, and not the 24 it says on a node of eight, that would be nearly all of it: where ranks have a
// GPU each, expect from 1 to 2.76 times the sum. There were no messages in it, so that theirs are the sum alone.
#pragma once

#include <cstdint>

#include "model/mesh.h"
#include "program/program.h"

namespace pleat::cost {

// Sizes and counts of NCCL 2.28 to 2.32 as its sources give them, with channels as the library reports them on a machine
// of eight Hopper GPUs behind NVSwitch (NCCL_DEBUG=INFO: "24 coll channels, ... 32 p2p channels").
struct NcclSizes {
  int64_t simple_bytes = int64_t{4} << 20;  // NCCL_BUFFSIZE
  int64_t ll_bytes = 8 * 512 * 8 * 16;      // lines per thread, threads, steps, bytes of a line
  int64_t ll128_bytes = 120 * 640 * 8 * 8;  // elements per thread, threads, steps, bytes of an element
  int64_t granule = int64_t{2} << 20;       // of the driver's allocations: a buffer takes whole ones
  int64_t group_bytes = int64_t{6} << 20;   // of a communicator before its first call: channels, work queue
  int collective_channels = 24;
  int message_channels = 32;  // of all peers together, each with as many as there are for eight of them
  double collectives_over_sum = 2.76;
};

struct NcclMemory {
  int64_t bytes = 0;
  int num_groups = 0;  // communicators: groups of several ranks, one per lane that calls them
};
// Of one rank that runs `program`; the communicator that all groups are split from is in it. None on one rank.
NcclMemory nccl_memory(const model::Mesh& mesh, const program::Program& program, const NcclSizes& sizes = {});

}  // namespace pleat::cost
