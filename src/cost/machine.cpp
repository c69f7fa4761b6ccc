#include "cost/machine.h"

#include "base/error.h"

namespace pleat::cost {

double Processor::flops_per_ns(tensor::Dtype dtype) const {
  struct Rate {
    std::string_view key;
    double tflops;
  };
  const auto [key, tflops] = [&]() -> Rate {
    switch (dtype) {
      case tensor::Dtype::BF16:
        return {"bf16", bf16_tflops};
      case tensor::Dtype::F64:
        return {"f64", f64_tflops};
      case tensor::Dtype::E4M3:
        return {"fp8", fp8_tflops};
      case tensor::Dtype::E2M1:
        return {"fp4", fp4_tflops};
      default:
        return {"f32", f32_tflops};
    }
  }();
  if (tflops <= 0)
    base::fail("the machine has no rate for products of {}: its file needs processor.{}_tflops",
               tensor::name_of(dtype), key);
  return tflops * 1e3;
}

}  // namespace pleat::cost
