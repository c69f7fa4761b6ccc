// AdamW where weights or states are kept in fewer bits than the arithmetic: adamw_narrow, adamw_coded. A block of every
// array becomes floats, is updated as those are (adamw.h), and is stored again: rounded once, behind the step.
#include <algorithm>

#include "base/rng.h"
#include "kernels/bind.h"
#include "kernels/math/coords.h"
#include "kernels/math/tiles.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/optimizer.h"
#include "kernels/optimizer/states.h"
#include "tensor/bf16.h"
#include "tensor/block_codes.h"
#include "tensor/short_master.h"

namespace pleat::kernels {
namespace {

using tensor::Dtype;
using tensor::kCodeBlock;

static_assert(kAdamwBlock % kCodeBlock == 0);

// Elements of one array from `at` on, as floats and back.
struct Kept {
  const Arg* arg = nullptr;
  const Arg* scale = nullptr;

  template <class T>
  T* place(int64_t at) const {
    return static_cast<T*>(arg->data) + at;
  }
  float* scale_of(int64_t at) const { return static_cast<float*>(scale->data) + at / kCodeBlock; }

  void open(int64_t at, int64_t count, float* to) const {
    if (arg->dtype == Dtype::F32) std::copy_n(place<float>(at), count, to);
    if (arg->dtype == Dtype::BF16)
      for (int64_t i = 0; i < count; ++i) to[i] = tensor::widened(place<uint16_t>(at)[i]);
  }
  void close(int64_t at, int64_t count, const float* from) const {
    if (arg->dtype == Dtype::F32) std::copy_n(from, count, place<float>(at));
    if (arg->dtype == Dtype::BF16)
      for (int64_t i = 0; i < count; ++i) place<uint16_t>(at)[i] = tensor::narrowed(from[i]);
  }

  // Blocks begin at `at`; a last one may be shorter.
  template <class Code>
  void decode(int64_t at, int64_t count, float* to) const {
    for (int64_t i = 0; i < count; i += kCodeBlock)
      tensor::decode_block<Code>(place<uint8_t>(at + i), std::min(kCodeBlock, count - i), *scale_of(at + i),
                                 to + i);
  }
  template <class Code>
  void encode(int64_t at, int64_t count, const float* from) const {
    for (int64_t i = 0; i < count; i += kCodeBlock)
      *scale_of(at + i) =
          tensor::encode_block<Code>(from + i, std::min(kCodeBlock, count - i), place<uint8_t>(at + i));
  }
};

// The weight as floats: itself, or a bf16 with what it keeps of its float.
struct Weights {
  const Arg* w = nullptr;
  const Arg* rest = nullptr;
  int64_t first = 0;    // of the piece, in w
  int64_t element = 0;  // of the parameter, that w begins with
  base::RandomStream random;

  void open(int64_t at, int64_t count, float* to) const {
    if (w->dtype == Dtype::F32) {
      std::copy_n(static_cast<const float*>(w->data) + first + at, count, to);
      return;
    }
    const uint16_t* high = static_cast<const uint16_t*>(w->data) + first + at;
    for (int64_t i = 0; i < count; ++i)
      to[i] = !rest ? tensor::widened(high[i])
              : rest->dtype == Dtype::I16
                  ? tensor::join(high[i], static_cast<const int16_t*>(rest->data)[at + i])
                  : tensor::join_short(high[i], static_cast<const int8_t*>(rest->data)[at + i]);
  }
  void close(int64_t at, int64_t count, const float* from) const {
    if (w->dtype == Dtype::F32) {
      std::copy_n(from, count, static_cast<float*>(w->data) + first + at);
      return;
    }
    uint16_t* high = static_cast<uint16_t*>(w->data) + first + at;
    if (rest && rest->dtype == Dtype::I16) {
      for (int64_t i = 0; i < count; ++i) {
        const tensor::Halves halves = tensor::split(from[i]);
        high[i] = halves.high, static_cast<int16_t*>(rest->data)[at + i] = halves.rest;
      }
      return;
    }
    const int drops = rest ? tensor::kFloat24Drops : tensor::kBf16Drops;
    for (int64_t i = 0; i < count; ++i) {
      // An element has a number of its own: four of a draw, so that it does not matter where a block begins.
      const auto number = static_cast<uint64_t>(element + first + at + i);
      const float kept = tensor::without_bits_by_chance(from[i], drops, random.block(number / 4)[number % 4]);
      const tensor::ShortHalves halves = tensor::split_short(kept);
      high[i] = halves.high;
      if (rest) static_cast<int8_t*>(rest->data)[at + i] = halves.rest;
    }
  }
};

template <class Args>
void update(const Invocation& call, const Args& args, const UpdateStates& states,
            const base::RandomStream& random, int64_t element) {
  const Piece piece = args.coords.present
                          ? piece_of(args.w.size(), args.g.size(), coordinate(args.coords, call))
                          : Piece{0, args.g.size()};
  const AdamwScalars<float> scalars = adamw_scalars<float>(call, args.hyper, args.grad_scale);
  const Kept gradient{&args.g}, first{states.m, states.m_scale}, second{states.v, states.v_scale};
  const Weights weights{&args.w, states.rest, piece.first, element, random};
  const Tiling tiling = element_tiling(piece.count);
  call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
    const int64_t end = tiling.end(tile_idx);
    float g[kAdamwBlock], w[kAdamwBlock], m[kAdamwBlock], v[kAdamwBlock], root[kAdamwBlock];
    for (int64_t at = tiling.begin(tile_idx); at < end; at += kAdamwBlock) {
      const int64_t count = std::min(kAdamwBlock, end - at);
      gradient.open(at, count, g);
      weights.open(at, count, w);
      if (states.m_scale)
        first.decode<tensor::SignedCode>(at, count, m);
      else
        first.open(at, count, m);
      if (states.v_scale) {
        second.decode<tensor::RootCode>(at, count, v);
        for (int64_t i = 0; i < count; ++i) v[i] *= v[i];
      } else {
        second.open(at, count, v);
      }
      adamw_block(scalars, count, g, w, m, v, root);
      weights.close(at, count, w);
      if (states.m_scale)
        first.encode<tensor::SignedCode>(at, count, m);
      else
        first.close(at, count, m);
      if (states.v_scale)
        second.encode<tensor::RootCode>(at, count, root);
      else
        second.close(at, count, v);
    }
  });
}

void run_narrow(const Invocation& call) {
  const signature::adamw_narrow::Update<Arg> args(call.args);
  if (*args.commit.as<int32_t>() == 0) return;
  const UpdateStates states{&args.m, nullptr, &args.v, nullptr, &args.rest, true};
  update(call, args, states, base::RandomStream(0, base::RandomUse::Update, 0, 0), 0);
}

void run_coded(const Invocation& call) {
  const signature::adamw_coded::Update<Arg> args(call.args);
  if (*args.commit.as<int32_t>() == 0) return;
  uint64_t seed = 0;
  uint32_t step = 0, stream = 0;
  int64_t element = 0;
  if (args.rng.present) {
    seed = static_cast<uint64_t>(args.rng.template as<int64_t>()[0]);
    step = static_cast<uint32_t>(args.rng.template as<int64_t>()[1]);
    stream = static_cast<uint32_t>(call.integer("stream"));
    element = call.integer("element");
  }
  update(call, args, states_of(args.states), base::RandomStream(seed, base::RandomUse::Update, step, stream),
         element);
}

constexpr Binding kTable[] = {
    row<signature::adamw_narrow::Update, run_narrow>(),
    row<signature::adamw_coded::Update, run_coded>(),
};

}  // namespace

std::span<const Binding> coded_update_bindings() { return kTable; }

}  // namespace pleat::kernels
