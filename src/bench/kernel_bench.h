// GPU kernels one by one, each against its ceiling: products against a large product, streams against a large
// copy, both measured in the same run.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "program/program.h"

namespace pleat::bench {

struct Argument {
  tensor::Dtype dtype = tensor::Dtype::BF16;
  std::vector<int64_t> shape;
  program::Access access = program::Access::Read;
  std::vector<double> numbers;  // integers, or few values; empty: random floats, zero integers
  bool present = true;
};

struct KernelCase {
  std::string group, name;  // "grouped", "qwen3-30b-a3b w13 random fwd"
  program::KernelKind kind{};
  program::Phase phase{};
  std::vector<Argument> arguments;
  program::AttrSet attrs;
  double flops = 0, bytes = 0;  // what it must do, and must move through memory
};

struct KernelResult {
  std::string group, name;
  double milliseconds = 0, tflops = 0, tb_per_s = 0;
  double percent = 0;  // of the ceiling that binds
  std::string note;    // why it did not run
};

// Cases of the models the benchmarks use; `filter` keeps those whose group or name contains it.
std::vector<KernelCase> kernel_cases(const std::string& filter);

struct Ceilings {
  double copy = 0, gemm = 0;  // bytes/s, FLOP/s
};
KernelResult run_case(const KernelCase& c, const Ceilings& ceilings, int repeats);

}  // namespace pleat::bench
