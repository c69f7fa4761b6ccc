// adamw_coded on the GPU, with the bits of the CPU: one pass over the bytes. A warp holds a block of 256 elements, a
// thread eight of them, loaded sixteen bytes at a time where an array has that many for it. The blocks of a resident grid take turns,
// so that the tables of codes are read once. What a weight leaves out needs ten rounds of random bits for four elements;
// with them the arithmetic is nearly as long as the way of the bytes, so that nothing here branches where it need not.
#include <type_traits>

#include "base/rng.h"
#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/team.cuh"
#include "kernels/optimizer/adamw.cuh"
#include "kernels/optimizer/block_codes.cuh"
#include "kernels/optimizer/states.h"
#include "tensor/short_master.h"

namespace pleat::kernels {
namespace {

using namespace cuda;
using tensor::Dtype;
using tensor::kCodeBlock;

constexpr int kThreads = 256, kWarps = kThreads / 32;

enum class Kept : uint8_t { Float, Bf16, Codes };  // a moment
enum class Master : uint8_t {
  Float,
  Rest16,
  Rest8,
  None
};  // the weight: f32, or bf16 with what is beside it

// kRun elements of kBytes as they lie in memory.
template <int kBytes>
struct Raw {
  using Element =
      std::conditional_t<kBytes == 1, uint8_t, std::conditional_t<kBytes == 2, uint16_t, uint32_t>>;
  static constexpr int kWords = kRun * kBytes / 4, kPart = kWords < 4 ? kWords : 4;
  uint32_t word[kWords];

  __device__ void load(const void* from, int64_t at) {
    const auto* words = reinterpret_cast<const uint32_t*>(static_cast<const Element*>(from) + at);
#pragma unroll
    for (int i = 0; i < kWords; i += kPart) {
      const auto part = Vec<uint32_t, kPart>::load(words + i);
#pragma unroll
      for (int j = 0; j < kPart; ++j) word[i + j] = part.at[j];
    }
  }
  __device__ void store(void* to, int64_t at) const {
    auto* words = reinterpret_cast<uint32_t*>(static_cast<Element*>(to) + at);
#pragma unroll
    for (int i = 0; i < kWords; i += kPart) {
      Vec<uint32_t, kPart> part;
#pragma unroll
      for (int j = 0; j < kPart; ++j) part.at[j] = word[i + j];
      part.store(words + i);
    }
  }
  // The first `count` of them, at any address; the others are 0.
  __device__ void load_some(const void* from, int64_t at, int count) {
    const Element* elements = static_cast<const Element*>(from) + at;
#pragma unroll
    for (int i = 0; i < kWords; ++i) word[i] = 0;
#pragma unroll
    for (int j = 0; j < kRun; ++j)
      if (j < count) word[j * kBytes / 4] |= static_cast<uint32_t>(elements[j]) << j * kBytes % 4 * 8;
  }
  __device__ void store_some(void* to, int64_t at, int count) const {
    Element* elements = static_cast<Element*>(to) + at;
#pragma unroll
    for (int j = 0; j < kRun; ++j)
      if (j < count) elements[j] = static_cast<Element>(word[j * kBytes / 4] >> j * kBytes % 4 * 8);
  }
};

// Where a thread's run of the arrays is: all of it, at addresses that are multiples of 16 bytes, or its first elements.
struct Whole {
  int64_t at;
  template <class Raw>
  __device__ void load(const void* from, int64_t skipped, Raw& raw) const {
    raw.load(from, skipped + at);
  }
  template <class Raw>
  __device__ void store(void* to, int64_t skipped, const Raw& raw) const {
    raw.store(to, skipped + at);
  }
};
struct Part {
  int64_t at;
  int count;
  template <class Raw>
  __device__ void load(const void* from, int64_t skipped, Raw& raw) const {
    raw.load_some(from, skipped + at, count);
  }
  template <class Raw>
  __device__ void store(void* to, int64_t skipped, const Raw& raw) const {
    raw.store_some(to, skipped + at, count);
  }
};

__device__ inline void get(const Raw<4>& raw, float (&x)[kRun]) {
#pragma unroll
  for (int j = 0; j < kRun; ++j) x[j] = __uint_as_float(raw.word[j]);
}
__device__ inline void put(const float (&x)[kRun], Raw<4>& raw) {
#pragma unroll
  for (int j = 0; j < kRun; ++j) raw.word[j] = __float_as_uint(x[j]);
}
__device__ inline void get(const Raw<2>& raw, float (&x)[kRun]) {
#pragma unroll
  for (int j = 0; j < kRun; ++j)
    x[j] = __uint_as_float(j % 2 ? raw.word[j / 2] & 0xffff0000u : raw.word[j / 2] << 16);
}
__device__ inline void put(const float (&x)[kRun], Raw<2>& raw) {
#pragma unroll
  for (int j = 0; j < kRun; j += 2) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x[j], x[j + 1]);
    raw.word[j / 2] = *reinterpret_cast<const uint32_t*>(&pair);
  }
}

template <Kept kKept>
using MomentRaw = Raw<kKept == Kept::Float  ? 4
                      : kKept == Kept::Bf16 ? 2
                                            : 1>;

template <Master kMaster>
struct Weights {
  static constexpr bool kRest = kMaster == Master::Rest16 || kMaster == Master::Rest8;
  static constexpr bool kChance = kMaster == Master::Rest8 || kMaster == Master::None;
  Raw<kMaster == Master::Float ? 4 : 2> raw;
  Raw<kMaster == Master::Rest16 ? 2 : 1> rest;  // where kRest
  __device__ void get_numbers(float (&x)[kRun]) const {
    if constexpr (!kRest) {
      get(raw, x);
    } else {
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        const auto high = static_cast<uint16_t>(raw.word[j / 2] >> j % 2 * 16);
        x[j] = kMaster == Master::Rest16
                   ? tensor::join(high, static_cast<int16_t>(rest.word[j / 2] >> j % 2 * 16))
                   : tensor::join_short(high, static_cast<int8_t>(rest.word[j / 4] >> j % 4 * 8));
      }
    }
  }
  // `random`: of each element, where kChance.
  __device__ void put_numbers(const float (&x)[kRun], const uint32_t (&random)[kRun]) {
    if constexpr (kMaster == Master::Float) {
      put(x, raw);
      return;
    }
    constexpr int kDrops = kMaster == Master::Rest8 ? tensor::kFloat24Drops : tensor::kBf16Drops;
    uint32_t bits[kRun], high[kRun];  // the upper half of `high` is the bf16
    float most = 0;
#pragma unroll
    for (int j = 0; j < kRun; ++j) most = larger(most, fabsf(x[j]));
    if (most < 0x1p127f) {
      // Nothing here becomes infinite or is NaN, and the rest is what stands in the lower half.
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        bits[j] = __float_as_uint(x[j]) + (kChance ? random[j] & ((1u << kDrops) - 1) : 0);
        high[j] = bits[j] + (kMaster == Master::None ? 0 : 0x8000u);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        const float kept = kChance ? tensor::without_bits_by_chance(x[j], kDrops, random[j]) : x[j];
        const tensor::Halves halves = tensor::split(kept);
        high[j] = static_cast<uint32_t>(halves.high) << 16;
        bits[j] = static_cast<uint16_t>(halves.rest);
      }
    }
#pragma unroll
    for (int j = 0; j < kRun; j += 2) {
      raw.word[j / 2] = __byte_perm(high[j], high[j + 1], 0x7632);
      if constexpr (kMaster == Master::Rest16) rest.word[j / 2] = __byte_perm(bits[j], bits[j + 1], 0x5410);
    }
    if constexpr (kMaster == Master::Rest8) {
#pragma unroll
      for (int j = 0; j < kRun; j += 4)
        rest.word[j / 4] = __byte_perm(__byte_perm(bits[j], bits[j + 1], 0x0051),
                                       __byte_perm(bits[j + 2], bits[j + 3], 0x0051), 0x5410);
    }
  }
};

struct CodedArgs {
  const void* g;
  const double *hyper, *grad_scale;
  const int32_t* commit;
  const int64_t* place;  // or null: everything is whole
  const int64_t* rng;    // or null
  void* w;               // whole
  void *rest, *m, *v;
  float *m_scale, *v_scale;
  int64_t size, elements;  // of g, rest, m and v; of w
  int64_t element;         // of the parameter, that w begins with
  uint32_t stream;
  bool narrow_gradient;
};

// Of kRun elements from `number` on: four to a draw.
__device__ inline void draw(const base::RandomStream& stream, uint64_t number, uint32_t (&random)[kRun]) {
  const int skipped = static_cast<int>(number % 4);
  uint32_t drawn[kRun + 4];
#pragma unroll
  for (int k = 0; k < (kRun + 4) / 4; ++k) {
    if (k == kRun / 4 && skipped == 0) break;
    const base::RandomBlock block = stream.block(number / 4 + static_cast<uint64_t>(k));
#pragma unroll
    for (int j = 0; j < 4; ++j) drawn[4 * k + j] = block[static_cast<size_t>(j)];
  }
  if (skipped != 0) {
    if (skipped & 2) {
#pragma unroll
      for (int j = 0; j < kRun + 2; ++j) drawn[j] = drawn[j + 2];
    }
    if (skipped & 1) {
#pragma unroll
      for (int j = 0; j < kRun; ++j) drawn[j] = drawn[j + 1];
    }
  }
#pragma unroll
  for (int j = 0; j < kRun; ++j) random[j] = drawn[j];
}

// The roots of v, and the weights moved by them and m: `step` of adamw.cuh for eight elements. Where numbers are far from the
// ends of the floats, the roots and quotients are rounded to the nearest by the steps that a compiler takes there, without its look at
// each of them.
__device__ inline void move_weights(const Scalars& s, const float (&m)[kRun], const float (&v)[kRun],
                                    float most_m, float most_v, float (&root)[kRun], float (&w)[kRun]) {
  float above[kRun], least_v = v[0], least = 0x1p127f;
#pragma unroll
  for (int j = 0; j < kRun; ++j) {
    above[j] = s.rate * m[j];
    least_v = fminf(least_v, v[j]), least = fminf(least, fabsf(above[j]));
  }
  const bool usual = s.inverse_root2 >= 1 && s.inverse_root2 <= 0x1p10f && s.eps <= 1 && s.rate <= 0x1p10f &&
                     least_v >= 0x1p-100f && most_v <= 0x1p60f && least >= 0x1p-70f && most_m <= 0x1p50f;
  if (usual) {
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      const float r = reciprocal_root_approx(v[j]), near = __fmul_rn(v[j], r);
      root[j] = __fmaf_rn(__fmaf_rn(-near, near, v[j]), __fmul_rn(r, 0.5f), near);
      const float below = __fmaf_rn(root[j], s.inverse_root2, s.eps);
      const float t = reciprocal_approx(below), u = __fmaf_rn(__fmaf_rn(-below, t, 1.0f), t, t);
      const float first = __fmul_rn(above[j], u),
                  second = __fmaf_rn(__fmaf_rn(-below, first, above[j]), u, first);
      w[j] = __fmaf_rn(w[j], s.decay, -__fmaf_rn(__fmaf_rn(-below, second, above[j]), u, second));
    }
  } else {
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      root[j] = sqrtf(v[j]);
      w[j] = __fmaf_rn(w[j], s.decay, -(above[j] / __fmaf_rn(root[j], s.inverse_root2, s.eps)));
    }
  }
}

struct Tables {
  float of_first[256], of_second[256];
};

template <Master kMaster, Kept kFirst, Kept kSecond, class Place>
__device__ inline void update_block(const CodedArgs& p, const Scalars& s, const base::RandomStream& stream,
                                    const Tables& tables, int64_t first, int64_t block, const Place& place) {
  using tensor::RootCode;
  using tensor::SignedCode;
  Raw<4> g_wide;
  Raw<2> g_narrow;
  Weights<kMaster> weights;
  MomentRaw<kFirst> m_raw;
  MomentRaw<kSecond> v_raw;
  if (p.narrow_gradient)
    place.load(p.g, 0, g_narrow);
  else
    place.load(p.g, 0, g_wide);
  place.load(p.m, 0, m_raw);
  place.load(p.v, 0, v_raw);
  place.load(p.w, first, weights.raw);
  if constexpr (Weights<kMaster>::kRest) place.load(p.rest, 0, weights.rest);
  float m_scale = kFirst == Kept::Codes ? p.m_scale[block] : 0,
        v_scale = kSecond == Kept::Codes ? p.v_scale[block] : 0;
  float g[kRun], m[kRun], v[kRun], w[kRun], root[kRun];
  if (p.narrow_gradient)
    get(g_narrow, g);
  else
    get(g_wide, g);
  if constexpr (kFirst == Kept::Codes)
    decode(m_raw.word, m_scale, tables.of_first, m);
  else
    get(m_raw, m);
  if constexpr (kSecond == Kept::Codes)
    decode(v_raw.word, v_scale, tables.of_second, v);
  else
    get(v_raw, v);
  weights.get_numbers(w);
  float most_m = 0, most_v = 0;
#pragma unroll
  for (int j = 0; j < kRun; ++j) {
    if (kSecond == Kept::Codes) v[j] *= v[j];
    move_moments(s, g[j], m[j], v[j]);
    most_m = larger(most_m, fabsf(m[j])), most_v = larger(most_v, v[j]);
  }
  move_weights(s, m, v, most_m, most_v, root, w);
  if constexpr (kFirst == Kept::Codes)
    m_scale = encode<SignedCode>(m, most_m, tables.of_first, m_raw.word);
  else
    put(m, m_raw);
  place.store(p.m, 0, m_raw);
  if constexpr (kSecond == Kept::Codes)
    v_scale = encode<RootCode>(root, sqrtf(most_v), tables.of_second, v_raw.word);
  else
    put(v, v_raw);
  place.store(p.v, 0, v_raw);
  if (threadIdx.x % 32 == 0) {
    if (kFirst == Kept::Codes) p.m_scale[block] = m_scale;
    if (kSecond == Kept::Codes) p.v_scale[block] = v_scale;
  }
  uint32_t random[kRun];
  if constexpr (Weights<kMaster>::kChance)
    draw(stream, static_cast<uint64_t>(p.element + first + place.at), random);
  weights.put_numbers(w, random);
  place.store(p.w, first, weights.raw);
  if constexpr (Weights<kMaster>::kRest) place.store(p.rest, 0, weights.rest);
}

template <Master kMaster, Kept kFirst, Kept kSecond>
__global__ void __launch_bounds__(kThreads, 3) update(CodedArgs p, const Scalars* scalars) {
  __shared__ Tables tables;
  if (*p.commit == 0) return;
  static_assert(kThreads == 256);
  if (kFirst == Kept::Codes)
    tables.of_first[threadIdx.x] = CodeScale<tensor::SignedCode>::places()[threadIdx.x];
  if (kSecond == Kept::Codes)
    tables.of_second[threadIdx.x] = CodeScale<tensor::RootCode>::places()[threadIdx.x];
  __syncthreads();
  const int64_t first = p.place ? min(p.elements, *p.place * p.size) : 0;
  const int64_t count = min(p.size, p.elements - first);
  const Scalars s = *scalars;
  const base::RandomStream stream(p.rng ? static_cast<uint64_t>(p.rng[0]) : 0, base::RandomUse::Update,
                                  p.rng ? static_cast<uint32_t>(p.rng[1]) : 0, p.stream);
  const auto address = [](const void* x) { return reinterpret_cast<uintptr_t>(x); };
  const uintptr_t addresses = address(p.g) | address(p.m) | address(p.v) | address(p.rest) | address(p.w) |
                              static_cast<uintptr_t>(first) * (kMaster == Master::Float ? 4 : 2);
  const int in_block = static_cast<int>(threadIdx.x) % 32 * kRun;
  const int64_t whole = addresses % 16 == 0 ? count / kCodeBlock : 0;
  const int64_t blocks = (count + kCodeBlock - 1) / kCodeBlock, step = gridDim.x * int64_t{kWarps};
  int64_t block = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  for (; block < whole; block += step)
    update_block<kMaster, kFirst, kSecond>(p, s, stream, tables, first, block,
                                           Whole{block * kCodeBlock + in_block});
  for (; block < blocks; block += step) {
    const int64_t at = block * kCodeBlock + in_block;
    update_block<kMaster, kFirst, kSecond>(p, s, stream, tables, first, block,
                                           Part{at, static_cast<int>(min(count - at, int64_t{kRun}))});
  }
}

// Calls f with the constant that stands for what a moment is kept in; nothing for another type.
template <class F>
void with_kept(Dtype dtype, F&& f) {
  if (dtype == Dtype::F32) f(std::integral_constant<Kept, Kept::Float>{});
  if (dtype == Dtype::BF16) f(std::integral_constant<Kept, Kept::Bf16>{});
  if (dtype == Dtype::U8) f(std::integral_constant<Kept, Kept::Codes>{});
}
template <class F>
void with_master(Dtype weight, const Arg* rest, F&& f) {
  if (weight == Dtype::F32) f(std::integral_constant<Master, Master::Float>{});
  if (weight != Dtype::BF16) return;
  if (!rest)
    f(std::integral_constant<Master, Master::None>{});
  else if (rest->dtype == Dtype::I16)
    f(std::integral_constant<Master, Master::Rest16>{});
  else
    f(std::integral_constant<Master, Master::Rest8>{});
}

CudaLaunch prepare_adamw_coded(const Invocation& call, device::cuda::Lane& lane) {
  const signature::adamw_coded::Update<Arg> args(call.args);
  const UpdateStates states = states_of(args.states);
  const bool cut = args.coords.present;
  CudaLaunch out;
  if (!is_stored(args.g.dtype)) return out;
  CodedArgs p{};
  p.g = args.g.data;
  p.hyper = args.hyper.as<double>(), p.grad_scale = args.grad_scale.as<double>();
  p.commit = args.commit.as<int32_t>();
  p.place = cut ? args.coords.as<int64_t>() + call.integer("group") : nullptr;
  p.w = args.w.data, p.m = states.m->data, p.v = states.v->data;
  p.rest = states.rest ? states.rest->data : nullptr;
  p.m_scale = states.m_scale ? states.m_scale->as<float>() : nullptr;
  p.v_scale = states.v_scale ? states.v_scale->as<float>() : nullptr;
  p.size = args.g.size(), p.elements = cut ? args.w.size() : p.size;
  p.narrow_gradient = args.g.dtype == Dtype::BF16;
  if (args.rng.present) {
    p.rng = args.rng.as<int64_t>();
    p.stream = static_cast<uint32_t>(call.integer("stream")), p.element = call.integer("element");
  }
  const Attributes attributes = adamw_attributes(call);
  Scalars* const scalars = room_for_scalars(call);
  with_master(args.w.dtype, states.rest, [&](auto master) {
    with_kept(states.m->dtype, [&](auto first) {
      with_kept(states.v->dtype, [&](auto second) {
        const auto kernel = update<master, first, second>;
        const unsigned blocks =
            resident_blocks(kernel, kThreads, ceil_div(p.size, kCodeBlock * int64_t{kWarps}));
        out = [=, stream = lane.stream()] {
          if (blocks == 0) return;
          make_scalars<<<1, 1, 0, stream>>>(attributes, p.hyper, p.grad_scale, scalars);
          kernel<<<blocks, kThreads, 0, stream>>>(p, scalars);
          PLEAT_CUDA_LAUNCHED();
        };
      });
    });
  });
  return out;
}

constexpr CudaBinding kTable[] = {row<signature::adamw_coded::Update>(prepare_adamw_coded)};

}  // namespace

std::span<const CudaBinding> coded_update_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
