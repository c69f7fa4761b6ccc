// GPU kernels one by one, each against its ceiling: products against a large product, streams against a large
// copy, both measured in the same run.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/ceilings.h"
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
  int64_t window_ranks = 0;     // of a kernel that writes windows: of so many ranks, all in this GPU's memory
};

struct KernelResult {
  std::string group, name;
  double milliseconds = 0, tflops = 0, tb_per_s = 0;
  double percent = 0;  // of the ceiling that binds
  std::string note;    // why it did not run
};

// Cases of the models the benchmarks use; `filter` keeps those whose group or name contains it.
std::vector<KernelCase> kernel_cases(const std::string& filter);

// One product per expert, in bfloat16: `rows_of` expert e's rows of width_in times its [width_out, width_in].
// The gradient of the weights is overwritten, or added to.
struct GroupedProduct {
  std::string name;
  int64_t width_in = 0, width_out = 0;
  std::vector<int64_t> rows_of;
  program::Phase phase{};
  tensor::Dtype gradient = tensor::Dtype::BF16;
  bool add = false;
};
KernelCase grouped_case(const GroupedProduct& product);

// A case with its arguments on the GPU, random where they are floats, and its kernel bound to them.
class PreparedKernel {
 public:
  explicit PreparedKernel(const KernelCase& c);
  ~PreparedKernel();
  const std::string& missing() const { return missing_; }  // why it cannot run; empty: it can
  double median_seconds(int repeats);
  // Of each run, with other memory in the L2 cache when it starts.
  std::vector<double> cold_seconds(int repeats);

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::string missing_;
};

KernelResult run_case(const KernelCase& c, const Ceilings& ceilings, int repeats);

}  // namespace pleat::bench
