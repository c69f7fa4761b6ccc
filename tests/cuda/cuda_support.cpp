#include "cuda/cuda_support.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>

#include "device/cuda/cuda.h"
#include "kernels/contract.h"
#include "kernels/cuda/bind.h"

namespace pleat::kernels::testing {
namespace {

using program::Access;
using tensor::Dtype;

device::cuda::Lane& lane() {
  static device::cuda::Lane one;
  return one;
}

// Arguments whose type the contract fixes, whatever the compute type is.
bool fixed_type(program::KernelKind kind, const std::string& name) {
  return name == "expert_bias" || (kind == program::KernelKind::bias_update && name == "bias");
}

void fill_nan(Tensor& t) { t = Tensor::nan(t.dtype, t.shape); }

}  // namespace

bool only_once() {
  static const bool set = std::getenv("PLEAT_TEST_ONCE") != nullptr;
  return set;
}

std::string no_gpu() {
  std::string why;
  if (device::cuda::num_devices(&why) == 0) return "no GPU: " + why;
  const device::cuda::Facts facts = device::cuda::facts();
  if (facts.major != 9)
    return "the GPU is a " + facts.name + "; these kernels are built for compute capability 9.0";
  return "";
}

Compare bound(Dtype dtype, int64_t length) {
  const double storage = dtype == Dtype::BF16 ? std::ldexp(1.0, -8) : 0;
  const double sum = std::ldexp(1.0, -24) * (8 + 2 * std::sqrt(static_cast<double>(length)));
  return {storage + sum, 2 * (storage + sum)};
}

void call_cuda(program::KernelKind kind, program::Phase phase, const std::vector<Pass>& passes,
               const program::AttrSet& attrs, const std::function<void()>& when_prepared) {
  const auto& expected = program::arguments_of(kind, phase);
  PLEAT_CHECK(program::takes(expected, passes.size()), "{} {} takes {} arguments, got {}",
              program::name_of(kind), program::name_of(phase), expected.size(), passes.size());
  // One allocation; every argument on its own 256 bytes with a guard behind it that must not change.
  constexpr int64_t kGuard = 256;
  const auto padded = [](int64_t bytes) { return (bytes + 255) / 256 * 256 + kGuard; };
  int64_t total = 256;
  for (const Pass& p : passes)
    if (p.tensor) total += padded(static_cast<int64_t>(p.tensor->bytes.size()));
  device::cuda::Memory memory(total);
  lane().fill(memory.data(), 0xA5, total);
  std::vector<Arg> args;
  std::vector<std::pair<const Tensor*, std::byte*>> shared;  // a tensor passed twice is one argument
  int64_t offset = 0;
  for (const Pass& p : passes) {
    Arg arg;
    if (p.tensor) {
      std::byte* at = nullptr;
      for (const auto& [tensor, address] : shared)
        if (tensor == p.tensor) at = address;
      if (!at) {
        at = memory.data() + offset;
        offset += padded(static_cast<int64_t>(p.tensor->bytes.size()));
        lane().copy_in(at, p.tensor->bytes.data(), static_cast<int64_t>(p.tensor->bytes.size()));
        shared.emplace_back(p.tensor, at);
      }
      arg = {at, p.tensor->dtype, p.tensor->shape, p.access, true};
    }
    args.push_back(arg);
  }
  name_arguments(args, kind, phase);
  Invocation invocation{args, &attrs, nullptr};
  check_contract(kind, phase, invocation);
  // Exactly what the contract states, with a guard behind it. What an earlier stage left in it must not matter:
  // NaN in every floating type.
  const int64_t needed = scratch_of(kind, phase, invocation, {});
  device::cuda::Memory scratch(needed + kGuard);
  const auto fill_scratch = [&] {
    lane().fill(scratch.data(), 0xFF, needed);
    lane().fill(scratch.data() + needed, 0xA5, kGuard);
  };
  fill_scratch();
  invocation.scratch = {scratch.data(), static_cast<size_t>(needed)};
  const CudaPrepare prepare = find_cuda_kernel(kind, phase);
  if (!prepare) base::fail("no CUDA kernel for {} {}", program::name_of(kind), program::name_of(phase));
  if (needed > 0) {
    Invocation less = invocation;
    less.scratch = {};
    EXPECT_THROW(check_scratch(kind, phase, less), base::Error) << program::name_of(kind);
  }
  const CudaLaunch launch = prepare(invocation, lane());
  if (!launch)
    base::fail("{} {}: no CUDA kernel for these types", program::name_of(kind), program::name_of(phase));
  if (when_prepared) when_prepared();
  fill_scratch();  // a launch may have run while it was prepared
  launch();
  if (!only_once()) {
    // Again from the same start: a launch leaves nothing behind that changes the next.
    for (const auto& [tensor, address] : shared)
      lane().copy_in(address, tensor->bytes.data(), static_cast<int64_t>(tensor->bytes.size()));
    launch();
  }
  lane().synchronize();
  std::vector<std::byte> guard(kGuard);
  lane().copy_out(guard.data(), scratch.data() + needed, kGuard);
  lane().synchronize();
  for (std::byte b : guard)
    ASSERT_EQ(b, std::byte{0xA5}) << "wrote past the scratch of " << program::name_of(kind);
  for (size_t i = 0; i < passes.size(); ++i) {
    if (!passes[i].tensor) continue;
    Tensor& t = *passes[i].tensor;
    const int64_t bytes = static_cast<int64_t>(t.bytes.size());
    std::byte* at = static_cast<std::byte*>(args[i].data);
    lane().copy_out(guard.data(), at + (bytes + 255) / 256 * 256, kGuard);
    lane().synchronize();
    for (std::byte b : guard)
      ASSERT_EQ(b, std::byte{0xA5}) << "wrote past argument " << i << " of " << program::name_of(kind);
    std::vector<std::byte> now(t.bytes.size());
    if (bytes > 0) lane().copy_out(now.data(), at, bytes);
    lane().synchronize();
    if (passes[i].access == Access::Read) {
      EXPECT_TRUE(now == t.bytes) << "changed its input " << i << " of " << program::name_of(kind);
    } else {
      t.bytes = now;
    }
  }
}

void expect_agrees(program::KernelKind kind, program::Phase phase, const std::vector<Pass>& passes,
                   const program::AttrSet& attrs, Compare allowed, const std::vector<Part>& parts) {
  const auto& expected = program::arguments_of(kind, phase);
  const std::string what = std::string(program::name_of(kind)) + " " + std::string(program::name_of(phase));
  // The CPU's arguments: floats wide.
  std::vector<std::unique_ptr<Tensor>> wide(passes.size());
  std::vector<Pass> cpu = passes;
  for (size_t i = 0; i < passes.size(); ++i) {
    if (!passes[i].tensor) continue;
    for (size_t j = 0; j < i; ++j)
      if (passes[j].tensor == passes[i].tensor) cpu[i].tensor = wide[j].get();
    if (cpu[i].tensor != passes[i].tensor) continue;
    Tensor& from = *passes[i].tensor;
    const bool widen = tensor::is_float(from.dtype) && !fixed_type(kind, std::string(expected[i].name));
    wide[i] = std::make_unique<Tensor>(widen ? Tensor::of(Dtype::F64, from.shape, from.numbers()) : from);
    if (passes[i].access == Access::Write) fill_nan(*wide[i]), fill_nan(from);
    cpu[i].tensor = wide[i].get();
  }
  std::vector<Tensor> before;
  for (const Pass& p : passes) before.push_back(p.tensor ? *p.tensor : Tensor{});
  if (parts.empty()) call(kind, phase, cpu, attrs);
  for (const Part& part : parts) {
    std::vector<Pass> its;
    for (size_t i : part.args) its.push_back(cpu[i]);
    call(part.kind, part.phase, its, attrs);
  }
  call_cuda(kind, phase, passes, attrs);
  if (::testing::Test::HasFatalFailure()) return;
  for (size_t i = 0; i < passes.size(); ++i) {
    if (!passes[i].tensor || passes[i].access == Access::Read) continue;
    const std::vector<double> got = passes[i].tensor->numbers(), want = cpu[i].tensor->numbers();
    const std::string where = what + " output '" + std::string(expected[i].name) + "'";
    if (!tensor::is_float(passes[i].tensor->dtype)) {
      for (size_t e = 0; e < got.size(); ++e) ASSERT_EQ(got[e], want[e]) << where << " element " << e;
      continue;
    }
    double difference = 0, norm = 0, worst = 0, largest = 0;
    size_t at = 0;
    for (size_t e = 0; e < got.size(); ++e) {
      if (std::isnan(want[e])) continue;  // rows the contract leaves alone
      if (std::isnan(got[e])) {
        const auto is_nan = [](double x) { return std::isnan(x); };
        const auto last = std::find_if(got.rbegin(), got.rend(), is_nan);
        FAIL() << where << ": " << std::count_if(got.begin(), got.end(), is_nan) << " of " << got.size()
               << " elements are NaN, from " << e << " to " << got.rend() - last - 1 << "; the CPU has "
               << want[e] << " at the first";
      }
      if (std::isinf(want[e]) || std::isinf(got[e])) {
        ASSERT_EQ(got[e], want[e]) << where << " element " << e;
        continue;
      }
      const double d = std::fabs(got[e] - want[e]);
      difference += d * d, norm += want[e] * want[e];
      largest = std::max(largest, std::fabs(want[e]));
      if (d > worst) worst = d, at = e;
    }
    difference = std::sqrt(difference), norm = std::sqrt(norm);
    EXPECT_LE(norm < 1e-6 ? difference : difference / norm, allowed.norm) << where << ", norm " << norm;
    EXPECT_LE(worst, allowed.element * std::max(largest, 1e-6))
        << where << " element " << at << ": GPU " << got[at] << ", CPU " << want[at];
  }
  if (only_once()) return;
  // Once more from the same start: the same bits.
  std::vector<Tensor> first;
  for (const Pass& p : passes) first.push_back(p.tensor ? *p.tensor : Tensor{});
  for (size_t i = 0; i < passes.size(); ++i)
    if (passes[i].tensor && passes[i].access != Access::Read) *passes[i].tensor = before[i];
  call_cuda(kind, phase, passes, attrs);
  for (size_t i = 0; i < passes.size(); ++i)
    if (passes[i].tensor) {
      EXPECT_TRUE(*passes[i].tensor == first[i]) << what << " gives other bits when run again";
    }
}

}  // namespace pleat::kernels::testing
