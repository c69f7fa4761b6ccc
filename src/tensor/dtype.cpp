#include "tensor/dtype.h"

#include <fmt/format.h>

#include "base/error.h"

namespace pleat::tensor {

std::string_view name_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::U8:
      return "u8";
    case Dtype::I32:
      return "i32";
    case Dtype::I64:
      return "i64";
    case Dtype::F32:
      return "f32";
    case Dtype::F64:
      return "f64";
    case Dtype::BF16:
      return "bf16";
    case Dtype::I16:
      return "i16";
    case Dtype::E4M3:
      return "e4m3";
    case Dtype::E8M0:
      return "e8m0";
    case Dtype::E2M1:
      return "e2m1";
  }
  PLEAT_CHECK(false, "unknown dtype {}", static_cast<int>(dtype));
}

std::string known_dtypes() {
  std::string out;
  for (int d = 0; d <= static_cast<int>(kLastDtype); ++d)
    out += fmt::format("{}{}", d > 0 ? " " : "", name_of(static_cast<Dtype>(d)));
  return out;
}

std::optional<Dtype> find_dtype(std::string_view name) {
  for (int d = 0; d <= static_cast<int>(kLastDtype); ++d)
    if (name_of(static_cast<Dtype>(d)) == name) return static_cast<Dtype>(d);
  return {};
}

Dtype dtype_named(std::string_view name) {
  if (const auto known = find_dtype(name)) return *known;
  base::fail("unknown element type '{}'; known: {}", name, known_dtypes());
}

}  // namespace pleat::tensor
