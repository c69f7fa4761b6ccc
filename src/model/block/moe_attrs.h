// The static facts of the router's stages, read off the config in one place.
#pragma once

#include "config/config.h"
#include "program/program.h"

namespace pleat::model {

program::AttrSet jitter_attrs(const config::Config& config, int layer);
program::AttrSet force_attrs(const config::Config& config, int layer);
program::AttrSet choose_attrs(const config::Config& config, bool training);
program::AttrSet count_attrs(const config::Config& config);
program::AttrSet aux_attrs(const config::Config& config);
program::AttrSet plan_attrs(const config::Config& config, int64_t num_tokens);
program::AttrSet activation_attrs(const config::Config& config);  // of routed experts

}  // namespace pleat::model
