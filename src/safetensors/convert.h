// Elements on disk to and from the numbers we compute with.
//
// Widening is exact. Narrowing rounds once, to nearest, ties to even, straight from the given width; overflow
// becomes infinity, values below the smallest normal become subnormals or zero. NaN stays NaN with its sign
// and the upper bits of its payload, so BF16 and F16 come back from float or double bit for bit. Needs the
// default rounding mode; float subnormals need it that they are not flushed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "safetensors/element_type.h"
#include "tensor/dtype.h"

namespace pleat::safetensors {

// Types decode and encode take; the others are no numbers without more knowledge (scales) or no floats.
constexpr bool is_convertible(ElementType type) {
  return type == ElementType::BF16 || type == ElementType::F16 || type == ElementType::F32 ||
         type == ElementType::F64;
}

// Of a float type we compute with; throws for integers.
ElementType element_type_of(tensor::Dtype dtype);

// `in` holds out.size() elements of `type`, at any alignment. Throws for a type that is not convertible or
// sizes that do not match.
void decode(ElementType type, std::span<const std::byte> in, std::span<float> out);
void decode(ElementType type, std::span<const std::byte> in, std::span<double> out);

// The reverse; F64 from float is exact.
void encode(ElementType type, std::span<const float> in, std::span<std::byte> out);
void encode(ElementType type, std::span<const double> in, std::span<std::byte> out);

}  // namespace pleat::safetensors
