// One rank of a world that has no others: the rest of every group are its mirror images, who say what it says. So the
// program of any rank of any layout runs alone, with its own shapes and plausible data, and can be timed without the
// machine the layout is for. What it computes means nothing.
//
// all_gather: everybody's part is mine, repeated or cut where parts differ in length. all_reduce, reduce_scatter: the
// reduction of as many copies of mine as the group has ranks. all_to_all: what comes from any rank is what I send to
// myself, repeated or cut to what is awaited, zeros where I send myself nothing; counts that were gathered say just
// that, so rows and counts fit. shift, send_receive: my own. broadcast: what I have. send: dropped. receive: random
// numbers, finite and of size about one or below in every floating type. barrier: all are there.
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace pleat::comm {

// Rank `rank` of `size`. Buffers lie in host memory; there are no windows: images have no memory of their own to
// store into.
std::unique_ptr<Endpoint> mirror_endpoint(int size, int rank);

}  // namespace pleat::comm
