#include "kernels/kernel_support.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>

#include "kernels/contract.h"
#include "tensor/few_bits.h"

namespace pleat::kernels::testing {

Tensor Tensor::zeros(tensor::Dtype dtype, std::vector<int64_t> shape) {
  Tensor t{dtype, std::move(shape), {}};
  t.bytes.resize(static_cast<size_t>(t.size() * tensor::size_of(dtype)));
  return t;
}

Tensor Tensor::normal(tensor::Dtype dtype, std::vector<int64_t> shape, uint64_t seed, double scale) {
  Tensor t = zeros(dtype, std::move(shape));
  const base::RandomStream stream(seed, base::RandomUse::Test, 0, 0);
  for (int64_t i = 0; i < t.size(); ++i) t.set(i, scale * stream.normal(static_cast<uint64_t>(i)));
  return t;
}

Tensor Tensor::of(tensor::Dtype dtype, std::vector<int64_t> shape, const std::vector<double>& numbers) {
  Tensor t = zeros(dtype, std::move(shape));
  PLEAT_CHECK(t.size() == static_cast<int64_t>(numbers.size()));
  for (int64_t i = 0; i < t.size(); ++i) t.set(i, numbers[static_cast<size_t>(i)]);
  return t;
}

Tensor Tensor::nan(tensor::Dtype dtype, std::vector<int64_t> shape) {
  Tensor t = zeros(dtype, std::move(shape));
  if (!tensor::is_float(dtype)) {
    std::fill(t.bytes.begin(), t.bytes.end(), std::byte{0x7B});
  } else {
    for (int64_t i = 0; i < t.size(); ++i) t.set(i, std::numeric_limits<double>::quiet_NaN());
  }
  return t;
}

int64_t Tensor::size() const {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

double Tensor::at(int64_t i) const {
  const auto get = [&]<class T>(T) {
    T v;
    std::memcpy(&v, bytes.data() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    return static_cast<double>(v);
  };
  uint16_t bf16_bits = 0;
  if (dtype == tensor::Dtype::BF16)
    std::memcpy(&bf16_bits, bytes.data() + static_cast<size_t>(i) * sizeof(bf16_bits), sizeof(bf16_bits));
  switch (dtype) {
    case tensor::Dtype::U8:
    case tensor::Dtype::E8M0:
    case tensor::Dtype::E2M1:
      return get(uint8_t{});
    case tensor::Dtype::E4M3:
      return tensor::E4M3::value(static_cast<uint32_t>(bytes[static_cast<size_t>(i)]));
    case tensor::Dtype::I16:
      return get(int16_t{});
    case tensor::Dtype::I32:
      return get(int32_t{});
    case tensor::Dtype::I64:
      return get(int64_t{});
    case tensor::Dtype::F32:
      return get(float{});
    case tensor::Dtype::F64:
      return get(double{});
    case tensor::Dtype::BF16:
      return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bf16_bits) << 16));
  }
  return 0;
}

void Tensor::set(int64_t i, double number) {
  const auto put = [&]<class T>(T v) {
    std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof(T), &v, sizeof(T));
  };
  switch (dtype) {
    case tensor::Dtype::U8:
    case tensor::Dtype::E8M0:
    case tensor::Dtype::E2M1:
      return put(static_cast<uint8_t>(number));
    case tensor::Dtype::E4M3:
      return put(static_cast<uint8_t>(tensor::E4M3::code(number)));
    case tensor::Dtype::I16:
      return put(static_cast<int16_t>(number));
    case tensor::Dtype::I32:
      return put(static_cast<int32_t>(number));
    case tensor::Dtype::I64:
      return put(static_cast<int64_t>(number));
    case tensor::Dtype::F32:
      return put(static_cast<float>(number));
    case tensor::Dtype::F64:
      return put(number);
    case tensor::Dtype::BF16: {
      // To nearest, ties to even; NaN stays NaN.
      const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(number));
      return put(
          static_cast<uint16_t>(std::isnan(number) ? 0x7FC0u : (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16));
    }
  }
}

std::vector<double> Tensor::numbers() const {
  std::vector<double> out(static_cast<size_t>(size()));
  for (int64_t i = 0; i < size(); ++i) out[static_cast<size_t>(i)] = at(i);
  return out;
}

void call(program::KernelKind kind, program::Phase phase, std::vector<Pass> passes, program::AttrSet attrs,
          int num_threads) {
  static std::map<int, std::unique_ptr<device::Pool>> pools;
  auto& pool = pools[num_threads];
  if (!pool) pool = std::make_unique<device::Pool>(num_threads);
  const auto& expected = program::arguments_of(kind, phase);
  PLEAT_CHECK(program::takes(expected, passes.size()), "{} {} takes {} arguments, got {}",
              program::name_of(kind), program::name_of(phase), expected.size(), passes.size());
  std::vector<Arg> args;
  for (const Pass& pass : passes) {
    Arg arg;
    if (pass.tensor) {
      arg = {pass.tensor->bytes.data(), pass.tensor->dtype, pass.tensor->shape, pass.access, true};
    }
    args.push_back(arg);
  }
  name_arguments(args, kind, phase);
  const Invocation invocation{args, &attrs, pool.get()};
  check_contract(kind, phase, invocation);
  const Resolve resolve = find_cpu_kernel(kind, phase);
  const Kernel kernel = resolve ? resolve(invocation) : nullptr;
  if (!kernel) base::fail("no CPU kernel for {} {}", program::name_of(kind), program::name_of(phase));
  kernel(invocation);
}

std::vector<double> numeric_gradient(Tensor& x, const std::function<double()>& f, double step) {
  std::vector<double> out(static_cast<size_t>(x.size()));
  for (int64_t i = 0; i < x.size(); ++i) {
    const double keep = x.at(i);
    x.set(i, keep + step);
    const double up = f();
    x.set(i, keep - step);
    const double down = f();
    x.set(i, keep);
    out[static_cast<size_t>(i)] = (up - down) / (2 * step);
  }
  return out;
}

double norm_error(const std::vector<double>& a, const std::vector<double>& b) {
  PLEAT_CHECK(a.size() == b.size());
  double difference = 0, scale = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    scale += b[i] * b[i];
  }
  return scale < 1e-16 ? std::sqrt(difference) : std::sqrt(difference / scale);
}

double dot(const Tensor& a, const Tensor& b) {
  PLEAT_CHECK(a.size() == b.size());
  double sum = 0;
  for (int64_t i = 0; i < a.size(); ++i) sum += a.at(i) * b.at(i);
  return sum;
}

}  // namespace pleat::kernels::testing
