#include "cost/flops.h"

#include "cost/stage_work.h"

namespace pleat::cost {

ModelFlops model_flops(const config::Config& config, double tokens, double seq_len) {
  return model_flops(architecture_of(config), tokens, seq_len);
}

double stage_flops(const program::Program& program, const program::Stage& stage) {
  return stage_work(program, stage, RoutedRows::Balanced).flops;
}

double hardware_flops(const program::Program& program) {
  double sum = 0;
  for (const program::Stage& stage : program.stages) sum += stage_flops(program, stage);
  return sum;
}

}  // namespace pleat::cost
