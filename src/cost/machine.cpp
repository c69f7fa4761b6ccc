#include "cost/machine.h"

#include <cctype>

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

bool has_gpu(const Machine& m, std::string_view name) {
  const auto inside_word = [&](size_t i) {
    return i < name.size() && std::isalnum(static_cast<unsigned char>(name[i])) != 0;
  };
  const std::string& gpu = m.processor.gpu;
  if (gpu.empty()) return false;
  for (size_t at = name.find(gpu); at != name.npos; at = name.find(gpu, at + 1))
    if ((at == 0 || !inside_word(at - 1)) && !inside_word(at + gpu.size())) return true;
  return false;
}

Machine machine_of_rank(Machine m, int64_t ranks_here, int64_t threads) {
  if (m.kind == MachineKind::Gpu) return m;
  Processor& p = m.processor;
  for (double* rate :
       {&p.bf16_tflops, &p.fp8_tflops, &p.fp4_tflops, &p.f32_tflops, &p.f64_tflops, &p.memory_gb_s})
    *rate *= static_cast<double>(threads);
  m.node.ranks = ranks_here;
  return m;
}

}  // namespace pleat::cost
