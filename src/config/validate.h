// Combinations that cannot be, by section. Each assumes that single values are in range.
#pragma once

#include "config/config.h"

namespace pleat::config {

void validate_model(const Config& config);
// What depends on model.vocab_size. A file may leave that to the tokenizer, so `resolve` asks this, which
// every command passes once the tokenizer is known.
void validate_vocabulary(const Config& config);
// Only for moe.num_experts > 0.
void validate_moe(const Config& config);
void validate_run(const Config& config);
void validate_offload(const Config& config);
void validate_parallel(const Config& config);
// What the kernels of device.kind do not take (program/limits.h).
void validate_device(const Config& config);
// What must hold of a record, which nobody asked for: values in range, and a model that can be.
void validate_record(const Config& config);

}  // namespace pleat::config
