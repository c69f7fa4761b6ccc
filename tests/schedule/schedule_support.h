// Configs that between them switch on everything a program can hold.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "interpret/network/network.h"
#include "model/parameters.h"
#include "program/program.h"
#include "schedule/build.h"
#include "schedule/ranks.h"

namespace pleat::schedule {

using Words = std::vector<std::string>;

struct Case {
  std::string name;
  Words sets;
};
const std::vector<Case>& cases();

// Three layers, eight experts, one shared expert, two microbatches; then the overrides. Resolved.
config::Config make_config(const Words& sets = {});
program::Program train_program(const config::Config& config);

std::string joined(const std::vector<std::string>& lines);
int64_t padded(int64_t bytes);                       // as a value lies in the arena
interpret::Network on_ranks(const RankPrograms& r);  // every rank by itself
program::ValueId value_named(const program::Program& program, const std::string& name);

}  // namespace pleat::schedule
