#include "cost/stage_work.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace pleat::cost {
namespace {

// The stage as its contract sees it: no data, no scratch.
template <class F>
auto with_call(const program::Program& program, const program::Stage& stage, RoutedRows rows, double load,
               F&& f) {
  std::vector<kernels::Arg> args(stage.uses.size());
  std::vector<std::vector<int64_t>> shapes(stage.uses.size());
  for (size_t i = 0; i < args.size(); ++i) {
    const program::Use& use = stage.uses[i];
    if (use.value == program::kNoValue) continue;
    const program::Value& value = program.values[static_cast<size_t>(use.value)];
    shapes[i] = value.shape;
    if (rows == RoutedRows::Balanced && value.expected_rows > 0)
      shapes[i][0] =
          std::min<int64_t>(std::llround(static_cast<double>(value.expected_rows) * load), value.shape[0]);
    args[i] = {nullptr, value.dtype, shapes[i], use.access, true};
  }
  kernels::name_arguments(args, program::kernel_of(stage.op), stage.phase);
  return f(kernels::Invocation{args, &program.attrs[static_cast<size_t>(stage.attrs)]});
}

}  // namespace

kernels::Work stage_work(const program::Program& program, const program::Stage& stage, RoutedRows rows,
                         double load) {
  return with_call(program, stage, rows, load, [&](const kernels::Invocation& call) {
    return kernels::work_of(program::kernel_of(stage.op), stage.phase, call);
  });
}

int64_t stage_scratch(const program::Program& program, const program::Stage& stage) {
  return with_call(program, stage, RoutedRows::Planned, 1, [&](const kernels::Invocation& call) {
    return kernels::scratch_of(program::kernel_of(stage.op), stage.phase, call, {});
  });
}

}  // namespace pleat::cost
