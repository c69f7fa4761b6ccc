#include "tensor/dtype.h"

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

Dtype dtype_named(std::string_view name) {
  for (Dtype d : {Dtype::U8, Dtype::I32, Dtype::I64, Dtype::F32, Dtype::F64, Dtype::BF16, Dtype::I16,
                  Dtype::E4M3, Dtype::E8M0, Dtype::E2M1})
    if (name_of(d) == name) return d;
  base::fail("unknown element type '{}'; known: u8 i16 i32 i64 f32 f64 bf16 e4m3 e8m0 e2m1", name);
}

}  // namespace pleat::tensor
