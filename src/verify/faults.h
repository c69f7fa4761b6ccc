// The mistakes layouts are made of, planted in a program to see that they are noticed; and the part of a step
// that can be tried alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/mesh.h"
#include "program/program.h"
#include "runtime/rank_setup.h"

namespace pleat::verify {

// ScaleExpertGradients: expert gradients times ep, as if each expert rank had counted the tokens of all.
// DropReduction: the last rank adds nothing to the last bucket. SkipNorm: the last rank leaves one parameter
// out of the norm. DropExpert: the last rank adds nothing to the sums of one expert's gradients, its first one in
// its last expert layer; needs replicas of experts. DropCounts: the last rank adds nothing to the counts of tokens per
// expert. Drift is planted in the weights, between steps.
enum class Fault : uint8_t {
  None,
  ScaleExpertGradients,
  DropReduction,
  SkipNorm,
  DropExpert,
  DropCounts,
  Drift
};

// As the rank at `place` would run it.
program::Program with_fault(program::Program program, Fault fault, const runtime::RankPlace& place,
                            const model::Mesh& mesh, size_t num_parameters);

// Only what follows the last microbatch; the gradients are inputs.
program::Program only_update(program::Program program);

}  // namespace pleat::verify
