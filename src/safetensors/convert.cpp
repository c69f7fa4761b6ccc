#include "safetensors/convert.h"

#include <bit>
#include <cstring>
#include <type_traits>

#include "base/error.h"

namespace pleat::safetensors {

namespace {

// The loops below are branch-free per element so that they become vector code.

template <class Wide>
struct WideFormat;
template <>
struct WideFormat<float> {
  using Bits = uint32_t;
  static constexpr int kMantissa = 23, kBias = 127;
};
template <>
struct WideFormat<double> {
  using Bits = uint64_t;
  static constexpr int kMantissa = 52, kBias = 1023;
};

struct BFloat16 {
  static constexpr int kMantissa = 7, kBias = 127;
};
struct Float16 {
  static constexpr int kMantissa = 10, kBias = 15;
};

template <class Wide>
constexpr Wide power_of_two(int exponent) {
  using W = WideFormat<Wide>;
  using Bits = typename W::Bits;
  return std::bit_cast<Wide>(static_cast<Bits>(static_cast<Bits>(exponent + W::kBias) << W::kMantissa));
}

template <class Narrow, class Wide>
Wide widen(uint16_t narrow) {
  using W = WideFormat<Wide>;
  using Bits = typename W::Bits;
  constexpr int kShift = W::kMantissa - Narrow::kMantissa;
  constexpr Bits kRebias = static_cast<Bits>(W::kBias - Narrow::kBias) << W::kMantissa;
  constexpr unsigned kInfinity = 0x7FFFu >> Narrow::kMantissa << Narrow::kMantissa;
  constexpr Bits kWideInfinity = static_cast<Bits>(2 * W::kBias + 1) << W::kMantissa;
  const unsigned magnitude = narrow & 0x7FFFu;
  Bits bits = (static_cast<Bits>(magnitude) << kShift) + kRebias;
  if constexpr (kRebias != 0) {
    const Wide tiny = static_cast<Wide>(static_cast<int32_t>(magnitude)) *
                      power_of_two<Wide>(1 - Narrow::kBias - Narrow::kMantissa);
    // By masks: of a choice the compiler makes a branch here, since a product may trap.
    const Bits is_tiny = Bits{0} - static_cast<Bits>(magnitude < (1u << Narrow::kMantissa));
    bits = (std::bit_cast<Bits>(tiny) & is_tiny) | (bits & ~is_tiny);
    bits |= kWideInfinity & (Bits{0} - static_cast<Bits>(magnitude >= kInfinity));
  }
  bits |= static_cast<Bits>(narrow & 0x8000u) << (sizeof(Wide) * 8 - 16);
  return std::bit_cast<Wide>(bits);
}

template <class Narrow, class Wide>
uint16_t narrow(Wide wide) {
  using W = WideFormat<Wide>;
  using Bits = typename W::Bits;
  constexpr int kShift = W::kMantissa - Narrow::kMantissa;
  constexpr Bits kRebias = static_cast<Bits>(W::kBias - Narrow::kBias) << W::kMantissa;
  constexpr Bits kInfinity = 0x7FFFu >> Narrow::kMantissa << Narrow::kMantissa;
  constexpr Bits kWideInfinity = static_cast<Bits>(2 * W::kBias + 1) << W::kMantissa;
  constexpr Bits kQuiet = Bits{1} << (Narrow::kMantissa - 1), kPayload = 2 * kQuiet - 1;
  const Bits all = std::bit_cast<Bits>(wide);
  const Bits magnitude = all & (~Bits{0} >> 1);

  // Half of the last place kept, less one unless the kept part is odd: a carry exactly when rounding up.
  const Bits rounded = magnitude + ((Bits{1} << (kShift - 1)) - 1) + (magnitude >> kShift & 1);
  Bits bits = (rounded - kRebias) >> kShift;
  bits = rounded - kRebias >= (kInfinity << kShift) ? kInfinity : bits;
  if constexpr (kRebias != 0) {
    // Adding a power whose last place is the narrow unit lets the adder round.
    constexpr Wide kAnchor = power_of_two<Wide>(1 - Narrow::kBias - Narrow::kMantissa + W::kMantissa);
    const Wide anchored = std::bit_cast<Wide>(magnitude) + kAnchor;
    const Bits tiny = std::bit_cast<Bits>(anchored) - std::bit_cast<Bits>(kAnchor);
    constexpr Bits kSmallestNormal = kRebias + (Bits{1} << W::kMantissa);
    bits = magnitude < kSmallestNormal ? tiny : bits;
  }
  const Bits payload = magnitude >> kShift & kPayload;
  const Bits nan = kInfinity | (payload == 0 ? kQuiet : payload);
  bits = magnitude > kWideInfinity ? nan : bits;
  return static_cast<uint16_t>(bits | (all >> (sizeof(Wide) * 8 - 16) & 0x8000u));
}

template <class Disk, class Wide, class Convert>
void decode_all(std::span<const std::byte> in, std::span<Wide> out, Convert convert) {
  for (size_t i = 0; i < out.size(); ++i) {
    Disk element;
    std::memcpy(&element, in.data() + i * sizeof(Disk), sizeof(Disk));
    out[i] = convert(element);
  }
}

template <class Disk, class Wide, class Convert>
void encode_all(std::span<const Wide> in, std::span<std::byte> out, Convert convert) {
  for (size_t i = 0; i < in.size(); ++i) {
    const Disk element = convert(in[i]);
    std::memcpy(out.data() + i * sizeof(Disk), &element, sizeof(Disk));
  }
}

void check(ElementType type, size_t num_bytes, size_t num_elements) {
  if (!is_convertible(type))
    base::fail("{} elements cannot be taken as numbers; BF16 F16 F32 F64 can", name_of(type));
  if (num_bytes != num_elements * static_cast<size_t>(size_of(type)))
    base::fail("{} bytes do not hold {} elements of {}", num_bytes, num_elements, name_of(type));
}

template <class Wide>
void decode_as(ElementType type, std::span<const std::byte> in, std::span<Wide> out) {
  check(type, in.size(), out.size());
  if (type == ElementType::BF16)
    decode_all<uint16_t>(in, out, [](uint16_t x) { return widen<BFloat16, Wide>(x); });
  else if (type == ElementType::F16)
    decode_all<uint16_t>(in, out, [](uint16_t x) { return widen<Float16, Wide>(x); });
  else if (type == ElementType::F32)
    decode_all<float>(in, out, [](float x) { return static_cast<Wide>(x); });
  else
    decode_all<double>(in, out, [](double x) { return static_cast<Wide>(x); });
}

template <class Wide>
void encode_as(ElementType type, std::span<const Wide> in, std::span<std::byte> out) {
  check(type, out.size(), in.size());
  if (type == ElementType::BF16)
    encode_all<uint16_t>(in, out, [](Wide x) { return narrow<BFloat16>(x); });
  else if (type == ElementType::F16)
    encode_all<uint16_t>(in, out, [](Wide x) { return narrow<Float16>(x); });
  else if (type == ElementType::F32)
    encode_all<float>(in, out, [](Wide x) { return static_cast<float>(x); });
  else
    encode_all<double>(in, out, [](Wide x) { return static_cast<double>(x); });
}

}  // namespace

ElementType element_type_of(tensor::Dtype dtype) {
  switch (dtype) {
    case tensor::Dtype::BF16:
      return ElementType::BF16;
    case tensor::Dtype::F32:
      return ElementType::F32;
    case tensor::Dtype::F64:
      return ElementType::F64;
    default:
      base::fail("{} elements are no floats", tensor::name_of(dtype));
  }
}

void decode(ElementType type, std::span<const std::byte> in, std::span<float> out) {
  decode_as(type, in, out);
}
void decode(ElementType type, std::span<const std::byte> in, std::span<double> out) {
  decode_as(type, in, out);
}
void encode(ElementType type, std::span<const float> in, std::span<std::byte> out) {
  encode_as(type, in, out);
}
void encode(ElementType type, std::span<const double> in, std::span<std::byte> out) {
  encode_as(type, in, out);
}

}  // namespace pleat::safetensors
