// Element types a value can have. No arithmetic lives here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pleat::tensor {

// BF16 is described only: programs may hold it, the CPU stores it and computes wider. I16 is what a BF16 weight
// leaves of its float (halves.h). E4M3, E8M0 and E2M1 are codes of few bits (few_bits.h): numbers only together with the
// scale of their block. E2M1 stands for two codes of four bits in a byte.
enum class Dtype : uint8_t { U8, I32, I64, F32, F64, BF16, I16, E4M3, E8M0, E2M1 };

constexpr int64_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::U8:
    case Dtype::E4M3:
    case Dtype::E8M0:
    case Dtype::E2M1:
      return 1;
    case Dtype::BF16:
    case Dtype::I16:
      return 2;
    case Dtype::I32:
    case Dtype::F32:
      return 4;
    case Dtype::I64:
    case Dtype::F64:
      return 8;
  }
  return 0;
}

constexpr bool is_float(Dtype dtype) {
  return dtype == Dtype::F32 || dtype == Dtype::F64 || dtype == Dtype::BF16;
}

constexpr Dtype kLastDtype = Dtype::E2M1;
std::string_view name_of(Dtype dtype);  // "f32"
std::string known_dtypes();             // "u8 i32 ...", for messages
std::optional<Dtype> find_dtype(std::string_view name);
Dtype dtype_named(std::string_view name);  // throws base::Error on an unknown name

template <class T>
struct DtypeOf;
template <>
struct DtypeOf<uint8_t> {
  static constexpr Dtype value = Dtype::U8;
};
template <>
struct DtypeOf<int32_t> {
  static constexpr Dtype value = Dtype::I32;
};
template <>
struct DtypeOf<int64_t> {
  static constexpr Dtype value = Dtype::I64;
};
template <>
struct DtypeOf<float> {
  static constexpr Dtype value = Dtype::F32;
};
template <>
struct DtypeOf<double> {
  static constexpr Dtype value = Dtype::F64;
};

}  // namespace pleat::tensor
