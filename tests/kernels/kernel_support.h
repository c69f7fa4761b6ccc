// Calls kernels the way a bound program does, on small tensors owned by the test, and compares analytic
// gradients with central differences in double.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kernels/invocation.h"

namespace pleat::kernels::testing {

// A small tensor; elements are reached as double whatever the dtype.
struct Tensor {
  tensor::Dtype dtype = tensor::Dtype::F64;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;

  static Tensor zeros(tensor::Dtype dtype, std::vector<int64_t> shape);
  static Tensor normal(tensor::Dtype dtype, std::vector<int64_t> shape, uint64_t seed, double scale = 1.0);
  static Tensor of(tensor::Dtype dtype, std::vector<int64_t> shape, const std::vector<double>& numbers);
  static Tensor nan(tensor::Dtype dtype,
                    std::vector<int64_t> shape);  // floats: NaN; integers: a large odd pattern

  int64_t size() const;
  double at(int64_t i) const;
  void set(int64_t i, double number);
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(bytes.data());
  }
  std::vector<double> numbers() const;
  bool operator==(const Tensor&) const = default;  // bitwise
};

// One argument of a call: a tensor, or nothing for an absent optional argument.
struct Pass {
  Tensor* tensor = nullptr;
  program::Access access = program::Access::Read;
};
inline Pass in(Tensor& t) { return {&t, program::Access::Read}; }
inline Pass out(Tensor& t) { return {&t, program::Access::Write}; }
inline Pass add(Tensor& t) { return {&t, program::Access::Update}; }  // accumulate, or in place
inline Pass none() { return {}; }

// Resolves and runs the CPU kernel of (kind, phase); throws what the kernel throws, and base::Error when none
// is bound.
void call(program::KernelKind kind, program::Phase phase, std::vector<Pass> args, program::AttrSet attrs = {},
          int num_threads = 2);

// Central differences of f at x (in place, restored), every element; returns the gradient.
std::vector<double> numeric_gradient(Tensor& x, const std::function<double()>& f, double step = 1e-5);

// ||a - b|| / ||b||; absolute when ||b|| < 1e-8.
double norm_error(const std::vector<double>& a, const std::vector<double>& b);
double dot(const Tensor& a, const Tensor& b);

}  // namespace pleat::kernels::testing
