// Row codes of tokens to rows ordered by expert, forward with their probabilities.
#include <algorithm>

#include "kernels/dispatch/dispatch_rows.h"
#include "kernels/quantize/quantize.h"

namespace pleat::kernels {
namespace {

// One row of codes and of scales for each row in use.
template <class Args>
void take_codes(const Args& args, const Invocation& call) {
  const auto* codes = static_cast<const uint8_t*>(args.codes.data);
  const float* scale = args.scale.template as<float>();
  const int32_t *offsets = args.offsets.template as<int32_t>(),
                *row_token = args.row_token.template as<int32_t>();
  auto* rows = static_cast<uint8_t*>(args.rows.data);
  float* rows_scale = args.rows_scale.template as<float>();
  const int64_t n = args.codes.dim(1), blocks = args.scale.dim(1),
                num_rows = offsets[args.offsets.dim(0) - 1];
  call.pool->for_each_tile(base::ceil_div(num_rows, dispatch::kTileRows), [&](int64_t tile) {
    const int64_t end = std::min(num_rows, (tile + 1) * dispatch::kTileRows);
    for (int64_t r = tile * dispatch::kTileRows; r < end; ++r) {
      const int64_t token = row_token[r];
      if (token < 0) {
        std::fill_n(rows + r * n, n, uint8_t{0});
        std::fill_n(rows_scale + r * blocks, blocks, 1.0f);
      } else {
        std::copy_n(codes + token * n, n, rows + r * n);
        std::copy_n(scale + token * blocks, blocks, rows_scale + r * blocks);
      }
    }
  });
}

template <class R>
struct Permute {
  static void run(const Invocation& call) {
    const signature::permute_codes::Forward<Arg> args(call.args);
    take_codes(args, call);
    const R* probs = args.probs.as<R>();
    const int32_t *offsets = args.offsets.as<int32_t>(), *row_token = args.row_token.as<int32_t>(),
                  *row_slot = args.row_slot.as<int32_t>();
    R* row_probs = args.row_probs.as<R>();
    const int64_t k = args.probs.dim(1), num_rows = offsets[args.offsets.dim(0) - 1];
    for (int64_t r = 0; r < num_rows; ++r)
      row_probs[r] = row_token[r] < 0 ? R(0) : probs[row_token[r] * k + row_slot[r]];
  }
};

void combine(const Invocation& call) {
  take_codes(signature::permute_codes::BackwardInput<Arg>(call.args), call);
}

bool is_fp8(const Invocation& call) {
  return call.integer("recipe") == static_cast<int64_t>(tensor::RecipeId::Fp8);
}

constexpr Binding kTable[] = {
    row<signature::permute_codes::Forward>([](const Invocation& call) -> Kernel {
      if (!is_fp8(call)) return nullptr;
      return select_float<Permute>(signature::permute_codes::Forward<Arg>(call.args).probs.dtype);
    }),
    row<signature::permute_codes::BackwardInput>(
        [](const Invocation& call) -> Kernel { return is_fp8(call) ? &combine : nullptr; }),
};

}  // namespace

std::span<const Binding> permute_codes_bindings() { return kTable; }

}  // namespace pleat::kernels
