#include "bench/kernel_bench.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/bind.h"

namespace pleat::bench {

KernelResult run_case(const KernelCase& c, const Ceilings& ceilings, int repeats) {
  using device::cuda::Memory;
  KernelResult out;
  out.group = c.group, out.name = c.name;
  device::cuda::Lane lane;
  lane.may_tune = true;
  std::vector<std::unique_ptr<Memory>> memory;
  std::vector<kernels::Arg> args;
  const auto write = [&](size_t i) {
    const Argument& a = c.arguments[i];
    int64_t n = 1;
    for (int64_t d : a.shape) n *= d;
    const int64_t bytes = n * tensor::size_of(a.dtype);
    std::byte* to = memory[i]->data();
    if (a.numbers.empty()) {
      if (a.dtype == tensor::Dtype::BF16 || a.dtype == tensor::Dtype::F32)
        device::cuda::fill_random(lane, to, n, a.dtype == tensor::Dtype::BF16, static_cast<uint32_t>(i + 1));
      else
        lane.fill(to, 0, bytes);
      return;
    }
    std::vector<std::byte> host(static_cast<size_t>(bytes));
    for (int64_t e = 0; e < n; ++e) {
      const double x = a.numbers[static_cast<size_t>(e) % a.numbers.size()];
      const auto put = [&](auto value) {
        std::memcpy(host.data() + static_cast<size_t>(e) * sizeof value, &value, sizeof value);
      };
      switch (a.dtype) {
        case tensor::Dtype::U8:
          put(static_cast<uint8_t>(x));
          break;
        case tensor::Dtype::I32:
          put(static_cast<int32_t>(x));
          break;
        case tensor::Dtype::I64:
          put(static_cast<int64_t>(x));
          break;
        case tensor::Dtype::F32:
          put(static_cast<float>(x));
          break;
        case tensor::Dtype::F64:
          put(x);
          break;
        case tensor::Dtype::I16:
          put(static_cast<int16_t>(x));
          break;
        case tensor::Dtype::BF16:
          base::fail("bf16 arguments of benchmarks are random");
      }
    }
    lane.copy_in(to, host.data(), bytes);
    lane.synchronize();
  };
  for (size_t i = 0; i < c.arguments.size(); ++i) {
    const Argument& a = c.arguments[i];
    int64_t n = a.present ? 1 : 0;
    for (int64_t d : a.shape) n *= d;
    memory.push_back(std::make_unique<Memory>(n * tensor::size_of(a.dtype)));
    kernels::Arg arg;
    if (a.present) arg = {memory.back()->data(), a.dtype, a.shape, a.access, true};
    args.push_back(arg);
    if (a.present) write(i);
  }
  const kernels::Invocation call{args, &c.attrs, nullptr};
  const kernels::CudaPrepare prepare = kernels::find_cuda_kernel(c.kind, c.phase);
  if (!prepare) {
    out.note = "no CUDA kernel";
    return out;
  }
  const kernels::CudaLaunch launch = prepare(call, lane);
  if (!launch) {
    out.note = "no CUDA kernel for these types";
    return out;
  }
  for (size_t i = 0; i < c.arguments.size(); ++i)
    if (c.arguments[i].present) write(i);  // tuning may have overwritten them
  const double seconds = device::cuda::median_seconds(lane, repeats, launch);
  out.milliseconds = seconds * 1e3;
  out.tflops = c.flops / seconds / 1e12;
  out.tb_per_s = c.bytes / seconds / 1e12;
  const double floor = std::max(ceilings.gemm > 0 ? c.flops / ceilings.gemm : 0,
                                ceilings.copy > 0 ? c.bytes / ceilings.copy : 0);
  out.percent = 100 * floor / seconds;
  return out;
}

}  // namespace pleat::bench
