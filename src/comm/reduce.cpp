#include "comm/reduce.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "tensor/bf16.h"

namespace pleat::comm {
namespace {

constexpr int64_t kBlock = 1024;

// bf16 as it lies in memory; numbers of it are floats.
struct Narrow {
  uint16_t bits;
  Narrow() = default;
  explicit Narrow(float x) : bits(tensor::narrowed(x)) {}
  operator float() const { return tensor::widened(bits); }
};

// The type a sum is carried in; unsigned, because integer sums wrap.
template <class T>
struct Carry {
  using Type = std::make_unsigned_t<T>;
};
template <>
struct Carry<Narrow> {
  using Type = float;
};
template <>
struct Carry<float> {
  using Type = double;
};
template <>
struct Carry<double> {
  using Type = double;
};

// NaN wins, and of equal values the one that was there first.
template <class T>
T larger(T a, T b) {
  return b > a || b != b ? b : a;
}
template <class T>
T smaller(T a, T b) {
  return b < a || b != b ? b : a;
}

template <class T>
const T* at(const std::byte* base, int64_t first) {
  return reinterpret_cast<const T*>(base) + first;
}

template <class T>
void block_sum(std::span<const std::byte* const> ins, int64_t first, int64_t n, T* result) {
  using C = typename Carry<T>::Type;
  C sum[kBlock];
  const T* in = at<T>(ins[0], first);
  for (int64_t i = 0; i < n; ++i) sum[i] = static_cast<C>(in[i]);
  for (size_t r = 1; r < ins.size(); ++r) {
    in = at<T>(ins[r], first);
    for (int64_t i = 0; i < n; ++i) sum[i] += static_cast<C>(in[i]);
  }
  for (int64_t i = 0; i < n; ++i) result[i] = static_cast<T>(sum[i]);
}

template <class T, class F>
void block_choose(std::span<const std::byte* const> ins, int64_t first, int64_t n, T* result, F choose) {
  std::memcpy(result, at<T>(ins[0], first), static_cast<size_t>(n) * sizeof(T));
  for (size_t r = 1; r < ins.size(); ++r) {
    const T* in = at<T>(ins[r], first);
    for (int64_t i = 0; i < n; ++i) result[i] = result[i] != result[i] ? result[i] : choose(result[i], in[i]);
  }
}

template <class T>
void reduce_typed(std::span<const std::byte* const> ins, std::span<std::byte* const> outs, int64_t count,
                  Reduce reduce) {
  T result[kBlock];
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t n = std::min(kBlock, count - first);
    switch (reduce) {
      case Reduce::Sum:
        block_sum<T>(ins, first, n, result);
        break;
      case Reduce::Max:
        block_choose<T>(ins, first, n, result, larger<T>);
        break;
      case Reduce::Min:
        block_choose<T>(ins, first, n, result, smaller<T>);
        break;
    }
    for (std::byte* out : outs)
      std::memcpy(out + first * static_cast<int64_t>(sizeof(T)), result, static_cast<size_t>(n) * sizeof(T));
  }
}

}  // namespace

void reduce_in_order(std::span<const std::byte* const> ins, std::span<std::byte* const> outs, int64_t count,
                     tensor::Dtype dtype, Reduce reduce) {
  switch (dtype) {
    case tensor::Dtype::F32:
      return reduce_typed<float>(ins, outs, count, reduce);
    case tensor::Dtype::F64:
      return reduce_typed<double>(ins, outs, count, reduce);
    case tensor::Dtype::I32:
      return reduce_typed<int32_t>(ins, outs, count, reduce);
    case tensor::Dtype::I64:
      return reduce_typed<int64_t>(ins, outs, count, reduce);
    case tensor::Dtype::BF16:
      return reduce_typed<Narrow>(ins, outs, count, reduce);
    case tensor::Dtype::U8:
    case tensor::Dtype::I16:
    case tensor::Dtype::E4M3:
    case tensor::Dtype::E8M0:
    case tensor::Dtype::E2M1:
      break;
  }
  PLEAT_CHECK(false, "{} cannot be reduced", tensor::name_of(dtype));
}

}  // namespace pleat::comm
