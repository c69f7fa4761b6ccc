// What codes of few bits are, recipe by recipe (docs/numerics.md, section 11). `precision.recipe` names them; attr recipe of
// a stage is the number.
#pragma once

#include <cstdint>

#include "base/checked.h"
#include "tensor/dtype.h"

namespace pleat::tensor {

enum class RecipeId : int8_t { Fp8 = 1, Mxfp8 = 2, Nvfp4 = 3 };

struct Recipe {
  Dtype codes;
  int64_t per_byte;     // codes in an element of the value
  int64_t block;        // numbers along the depth that share a scale
  int64_t weight_rows;  // rows of a weight that share one with them
  Dtype scale;
  bool turns;     // column codes are made of row codes; else of the numbers themselves
  int64_t align;  // every expert begins at a multiple of so many rows in column codes
};

constexpr Recipe recipe_of(RecipeId id) {
  switch (id) {
    case RecipeId::Fp8:
      return {Dtype::E4M3, 1, 128, 128, Dtype::F32, true, 128};
    case RecipeId::Mxfp8:
      return {Dtype::E4M3, 1, 32, 1, Dtype::E8M0, false, 32};
    case RecipeId::Nvfp4:
      return {Dtype::E2M1, 2, 16, 16, Dtype::E4M3, false, 128};
  }
  return {};
}

// Rows of column codes that have room for `rows` rows of `experts` experts, however they are divided; of one matrix, 0
// experts.
inline int64_t column_rows(const Recipe& r, int64_t rows, int64_t experts) {
  const int64_t free = experts > 0 ? experts * (r.align - 1) : 0;
  return base::round_up(rows + free, r.align);
}

}  // namespace pleat::tensor
