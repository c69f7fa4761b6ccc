// Weights from the seed: a pure function of (seed, parameter name, logical element), so that every layout
// starts from the same numbers and adding a parameter leaves all others as they were.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "device/cpu/pool.h"
#include "model/parameter.h"
#include "model/shard.h"
#include "runtime/rank_setup.h"
#include "runtime/runtime.h"
#include "tensor/dtype.h"

namespace pleat::runtime {

// The part of the tensor that `runs` describe, in the rank's own order.
void initialize_slice(const model::Parameter& parameter, uint64_t seed, const std::vector<model::Run>& runs,
                      tensor::Dtype dtype, std::byte* out, device::Pool& pool);

// Whether the seed says what a value of the state begins as: a weight, or the rest of a narrow one
// (tensor/halves.h). Everything else begins as zero.
bool comes_from_seed(const std::string& name, const std::vector<model::Parameter>& table);
// A rank's value of the state: its part of the weight; of the rest what its owner holds, which may be a
// share. A narrow weight and its rest are the float the seed says. Padding is zero.
// `out`: its elements from `first` on.
void initialize_state(const std::string& name, const std::vector<model::Parameter>& table, uint64_t seed,
                      const model::Mesh& mesh, const RankPlace& place, tensor::Dtype dtype,
                      std::span<std::byte> out, device::Pool& pool, int64_t first = 0);
// The same bits, drawn on the GPU into memory it reaches, its own or pinned: what the start of a large model would wait for
// on the host. False, and nothing is done, where the value holds no random numbers.
bool draw_on_gpu(const std::string& name, const std::vector<model::Parameter>& table, uint64_t seed,
                 const model::Mesh& mesh, const RankPlace& place, tensor::Dtype dtype,
                 interpret::CudaMachine& machine, std::span<std::byte> out);

// All of a rank's state: what comes from the seed from it, the rest zero.
void initialize_weights(Runtime& runtime, const config::Config& config,
                        const std::vector<model::Parameter>& table, const RankSetup& setup);

}  // namespace pleat::runtime
