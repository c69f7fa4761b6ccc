// Which files of a run folder something that was accepted names: the record of the run, or a checkpoint. A start
// that may still be refused writes beside them, never over them.
#pragma once

#include <set>
#include <string>

#include "config/config.h"

namespace pleat::train {

// Absolute names of data and tokenizer, as a configuration names them.
using Names = std::set<std::string>;

std::string whole_name(const std::string& path);
// data.tokenizer without the family in front of it.
std::string path_of_tokenizer(const std::string& tokenizer);
Names names_in(const config::Config& used);

// Of the record in log.run_dir and of every checkpoint in checkpoint.dir that can be read.
Names names_in_use(const config::Config& resolved);

}  // namespace pleat::train
