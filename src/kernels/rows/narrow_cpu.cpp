// Numbers rounded to bfloat16 where they lie.
#include "kernels/math/tiles.h"
#include "kernels/rows/rows.h"
#include "tensor/bf16.h"

namespace pleat::kernels {
namespace {

void run_narrow(const Invocation& call) {
  const signature::narrow::Forward<Arg> args(call.args);  // the row of every phase
  float* x = args.x.as<float>();
  const Tiling tiling = element_tiling(args.x.size());
  call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
    for (int64_t i = tiling.begin(tile_idx); i < tiling.end(tile_idx); ++i)
      x[i] = tensor::widened(tensor::narrowed(x[i]));
  });
}

constexpr Binding kTable[] = {
    row<signature::narrow::Forward, run_narrow>(),
    row<signature::narrow::BackwardInput, run_narrow>(),
    row<signature::narrow::BackwardWeight, run_narrow>(),
};

}  // namespace

std::span<const Binding> narrow_bindings() { return kTable; }

}  // namespace pleat::kernels
