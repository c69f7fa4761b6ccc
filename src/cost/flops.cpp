#include "cost/flops.h"

#include "cost/stage_work.h"
#include "program/repeat.h"

namespace pleat::cost {

ModelFlops model_flops(const config::Config& config, double tokens, double seq_len) {
  return model_flops(architecture_of(config), tokens, seq_len);
}

double stage_flops(const program::Program& program, const program::Stage& stage) {
  return stage_work(program, stage, RoutedRows::Balanced).flops;
}

double hardware_flops(const program::Program& program) {
  double sum = 0;
  const program::StageRange repeated = program::repeated(program);
  for (program::StageId s = 0; s < static_cast<program::StageId>(program.stages.size()); ++s)
    sum += stage_flops(program, program.stages[static_cast<size_t>(s)]) *
           static_cast<double>(program::passes_of(program, repeated, s));
  return sum;
}

}  // namespace pleat::cost
