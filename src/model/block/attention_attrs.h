// The static facts of attention stages, shared by both kinds of attention.
#pragma once

#include "config/config.h"
#include "program/program.h"

namespace pleat::model {

// `parts`: over how many ranks the heads are cut.
program::AttrSet attention_attrs(const config::ModelConfig& model, int layer, int64_t parts = 1);
// Whether a layer attends through the sliding window.
bool has_window(const config::ModelConfig& model, int layer);

}  // namespace pleat::model
