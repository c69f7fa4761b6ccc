#include "cost/stage_work.h"

#include <vector>

namespace pleat::cost {

kernels::Work stage_work(const program::Program& program, const program::Stage& stage, RoutedRows rows) {
  const program::KernelKind kind = program::kernel_of(stage.op);
  std::vector<kernels::Arg> args(stage.uses.size());
  std::vector<std::vector<int64_t>> shapes(stage.uses.size());
  for (size_t i = 0; i < args.size(); ++i) {
    const program::Use& use = stage.uses[i];
    if (use.value == program::kNoValue) continue;
    const program::Value& value = program.values[static_cast<size_t>(use.value)];
    shapes[i] = value.shape;
    if (rows == RoutedRows::Balanced && value.expected_rows > 0) shapes[i][0] = value.expected_rows;
    args[i] = {nullptr, value.dtype, shapes[i], use.access, true};
  }
  kernels::name_arguments(args, kind, stage.phase);
  return kernels::work_of(kind, stage.phase, {args, &program.attrs[static_cast<size_t>(stage.attrs)]});
}

}  // namespace pleat::cost
