// What a model needs beside its weights to be used as it was trained: which tokens begin and end a text, how a
// conversation is written, the tokenizer. An export without them never stops by itself.
//
// Where the run was imported and keeps its tokenizer, the source's files stay as they are; a run trained on
// conversations still gets its own template and the end of a turn among the tokens that end a text.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "config/config.h"
#include "exchange/source_files.h"

namespace pleat::exchange {

struct CompanionRequest {
  const config::Config& trained;  // resolved
  std::string tokenizer;          // where the tokenizer is now: "byte", a file, a folder; empty: unknown
  bool keeps_source_ids = false;  // config.json is the source's and so is the tokenizer
};

// Completes `files` (which hold the tokenizer's, unless that is "byte") and the ids of `config_json`. Returns what
// could not be written, and why.
std::vector<std::string> complete_companion_files(const CompanionRequest& request,
                                                  std::vector<SmallFile>& files,
                                                  nlohmann::ordered_json& config_json);

}  // namespace pleat::exchange
