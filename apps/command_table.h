// The sub-commands of `pleat`: one table that main, --help and shell completion read.
#pragma once

#include <span>

#include "command.h"

namespace pleat::apps {

struct Command {
  const char* name;                                // "train", or "data tokenize" below "data"
  const char* meaning;                             // one line of --help
  void (*add)(CLI::App& command, Action& chosen);  // adds its options, its example and its callback
};

// In the order --help lists them. A command stands after the one it is below.
std::span<const Command> commands();

// Adds every row of the table below `app`. The callback of the one that is typed stores its action in
// `chosen`.
void add_commands(CLI::App& app, Action& chosen);

}  // namespace pleat::apps
