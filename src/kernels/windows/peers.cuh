// What a launch that stores into windows knows of the group: the windows of its ranks, and how many tokens go where.
#pragma once

#include "kernels/cuda/halt.cuh"
#include "kernels/cuda/team.cuh"
#include "kernels/windows/contract.h"

namespace pleat::kernels::cuda {

// How far each rank's window is from this rank's, so that an address here is one there.
struct Peers {
  int64_t away[windows::kMaxRanks];

  template <class T>
  __device__ T* there(T* here, int rank) const {
    return reinterpret_cast<T*>(reinterpret_cast<char*>(here) + away[rank]);
  }
};

inline Peers peers_of(const Invocation& call, const Arg& of) {
  if (call.windows.size() > windows::kMaxRanks)
    refuse(of, "{} ranks share experts through windows, needed at most {} on the GPU", call.windows.size(),
           windows::kMaxRanks);
  Peers out{};
  for (int r = 0; r < call.windows.size(); ++r)
    out.away[r] = call.windows.begin[static_cast<size_t>(r)] -
                  call.windows.begin[static_cast<size_t>(call.windows.own)];
  return out;
}

// all_tokens [ranks, expert_ranks + 1], as the device sees it.
struct GroupTokens {
  const int32_t* all;
  const int64_t* place;
  int ranks, expert_ranks, copies;

  __device__ int me() const { return static_cast<int>(*place); }
  __device__ int first(int source, int p) const { return all[source * (expert_ranks + 1) + p]; }
  __device__ int count(int source, int p) const { return first(source, p + 1) - first(source, p); }
};

inline GroupTokens group_tokens(const Invocation& call, const Arg& all_tokens, const Arg& coords) {
  return {all_tokens.as<int32_t>(), coords.as<int64_t>() + static_cast<size_t>(program::Group::Dispatch),
          static_cast<int>(all_tokens.dim(0)), static_cast<int>(all_tokens.dim(1) - 1),
          static_cast<int>(call.integer("copies"))};
}

// Blocks of a grid that walks over its work: `sms` multiprocessors' worth (0: all), no more than there is work for.
template <class Kernel>
unsigned blocks_on(Kernel kernel, int threads, int64_t sms, int64_t blocks) {
  int per_sm = 0;
  PLEAT_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, threads, 0));
  const int64_t most = sms > 0 ? std::min<int64_t>(sms, num_sms()) : num_sms();
  return static_cast<unsigned>(std::max<int64_t>(1, std::min(blocks, most * per_sm)));
}

}  // namespace pleat::kernels::cuda
