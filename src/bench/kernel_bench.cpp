#include "bench/kernel_bench.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "base/rng.h"
#include "device/cuda/random.h"
#include "kernels/contract.h"
#include "kernels/cuda/bind.h"
#include "tensor/few_bits.h"

namespace pleat::bench {

using device::cuda::Memory;

struct PreparedKernel::State {
  explicit State(const KernelCase& of) : c(of) {}
  const KernelCase c;  // the arguments' shapes are looked at as long as the kernel is
  device::cuda::Lane lane;
  std::vector<std::unique_ptr<Memory>> memory;
  std::vector<kernels::Arg> args;
  std::unique_ptr<Memory> scratch;
  std::unique_ptr<Memory> other;  // larger than the L2 cache
  std::unique_ptr<Memory> windows;
  std::vector<std::byte*> window_of;  // by rank
  kernels::CudaLaunch launch;

  // What the kernel writes, once for every rank; this one is the first.
  kernels::Windows open_windows() {
    int64_t size = 0;
    const auto place = [](const kernels::Arg& a) {
      return (a.size() * tensor::size_of(a.dtype) + 255) / 256 * 256;
    };
    for (const kernels::Arg& a : args)
      if (a.present && a.access != program::Access::Read) size += place(a);
    windows = std::make_unique<Memory>(size * c.window_ranks);
    for (int64_t r = 0; r < c.window_ranks; ++r) window_of.push_back(windows->data() + r * size);
    int64_t at = 0;
    for (kernels::Arg& a : args)
      if (a.present && a.access != program::Access::Read) a.data = windows->data() + at, at += place(a);
    return {window_of, 0};
  }

  // Codes of normal numbers, the same run of them again and again.
  void fill_codes(std::byte* to, int64_t n, uint64_t seed) {
    const base::RandomStream random(5, base::RandomUse::Test, 0, seed);
    std::vector<uint8_t> some(static_cast<size_t>(std::min<int64_t>(n, 1 << 16)));
    for (size_t e = 0; e < some.size(); ++e)
      some[e] = static_cast<uint8_t>(tensor::E4M3::code(100 * random.normal(e)));
    const auto begin = static_cast<int64_t>(some.size());
    lane.copy_in(to, some.data(), begin);
    lane.synchronize();
    for (int64_t done = begin; done < n; done *= 2) lane.copy(to + done, to, std::min(done, n - done));
  }

  void write(size_t i) {
    const Argument& a = c.arguments[i];
    int64_t n = 1;
    for (int64_t d : a.shape) n *= d;
    const int64_t bytes = n * tensor::size_of(a.dtype);
    std::byte* to = memory[i]->data();
    if (a.numbers.empty()) {
      if (a.dtype == tensor::Dtype::BF16 || a.dtype == tensor::Dtype::F32)
        device::cuda::fill_random(lane, to, n, a.dtype == tensor::Dtype::BF16, static_cast<uint32_t>(i + 1));
      else if (a.dtype == tensor::Dtype::E4M3)
        fill_codes(to, n, i);
      else
        lane.fill(to, 0, bytes);
      return;
    }
    // The numbers again and again: some of it is made here, and copied as often as it takes.
    const auto period = static_cast<int64_t>(a.numbers.size());
    const int64_t made = std::min(n, std::max<int64_t>(1, (int64_t{1} << 20) / period) * period);
    std::vector<std::byte> host(static_cast<size_t>(made * tensor::size_of(a.dtype)));
    for (int64_t e = 0; e < made; ++e) {
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
        case tensor::Dtype::E4M3:
        case tensor::Dtype::E8M0:
        case tensor::Dtype::E2M1:
          base::fail("{} arguments of benchmarks are random", tensor::name_of(a.dtype));
      }
    }
    const auto size = static_cast<int64_t>(host.size());
    for (int64_t at = 0; at < bytes; at += size)
      lane.copy_in(static_cast<std::byte*>(to) + at, host.data(), std::min(size, bytes - at));
    lane.synchronize();
  }
};

PreparedKernel::PreparedKernel(const KernelCase& of) : state_(std::make_unique<State>(of)) {
  State& s = *state_;
  const KernelCase& c = s.c;
  s.lane.may_tune = true;
  for (size_t i = 0; i < c.arguments.size(); ++i) {
    const Argument& a = c.arguments[i];
    int64_t n = a.present ? 1 : 0;
    for (int64_t d : a.shape) n *= d;
    s.memory.push_back(std::make_unique<Memory>(n * tensor::size_of(a.dtype)));
    kernels::Arg arg;
    if (a.present) arg = {s.memory.back()->data(), a.dtype, a.shape, a.access, true};
    s.args.push_back(arg);
    if (a.present) s.write(i);
  }
  kernels::name_arguments(s.args, c.kind, c.phase);
  kernels::Invocation call{s.args, &c.attrs, nullptr};
  if (c.window_ranks > 0) call.windows = s.open_windows();
  kernels::check_contract(c.kind, c.phase, call);
  s.scratch = std::make_unique<Memory>(kernels::scratch_of(c.kind, c.phase, call, {}));
  call.scratch = {s.scratch->data(), static_cast<size_t>(s.scratch->size())};
  const kernels::CudaPrepare prepare = kernels::find_cuda_kernel(c.kind, c.phase);
  if (!prepare) {
    missing_ = "no CUDA kernel";
    return;
  }
  s.launch = prepare(call, s.lane);
  if (!s.launch) {
    missing_ = "no CUDA kernel for these types";
    return;
  }
  for (size_t i = 0; i < c.arguments.size(); ++i)
    if (c.arguments[i].present) s.write(i);  // tuning may have overwritten them
}

PreparedKernel::~PreparedKernel() = default;

double PreparedKernel::median_seconds(int repeats) {
  return device::cuda::median_seconds(state_->lane, repeats, state_->launch);
}

std::vector<double> PreparedKernel::cold_seconds(int repeats) {
  State& s = *state_;
  if (!s.other) s.other = std::make_unique<Memory>(4 * device::cuda::facts().l2_bytes);
  std::vector<double> out;
  for (int i = 0; i < repeats; ++i) {
    device::cuda::Event begin(true), end(true);
    s.lane.fill(s.other->data(), 0, s.other->size());
    s.lane.record(begin);
    s.launch();
    s.lane.record(end);
    out.push_back(device::cuda::Event::milliseconds(begin, end) / 1e3);
  }
  return out;
}

KernelResult run_case(const KernelCase& c, const Ceilings& ceilings, int repeats) {
  KernelResult out;
  out.group = c.group, out.name = c.name;
  PreparedKernel kernel(c);
  out.note = kernel.missing();
  if (!out.note.empty()) return out;
  const double seconds = kernel.median_seconds(repeats);
  out.milliseconds = seconds * 1e3;
  out.tflops = c.flops / seconds / 1e12;
  out.tb_per_s = c.bytes / seconds / 1e12;
  const double rate = c.arguments[0].dtype == tensor::Dtype::E4M3 ? ceilings.codes : ceilings.gemm;
  const double floor =
      std::max(rate > 0 ? c.flops / rate : 0, ceilings.copy > 0 ? c.bytes / ceilings.copy : 0);
  out.percent = 100 * floor / seconds;
  return out;
}

}  // namespace pleat::bench
