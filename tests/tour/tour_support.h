// The commands of a document, taken out of its fenced blocks and made into one bash script.
//
// A fenced block says what it is:
//   ```sh        commands, run in order in one shell; a trailing backslash and here-documents are understood
//   ```text and any other word: not commands
// Blocks below `<!-- from FILE -->` and `<!-- output of pleat ... -->` are compared by tools/check_excerpts. A
// block that says nothing is a fault: nobody could tell whether a command was left out.
//
// `<!-- file: run.toml -->` above a block of another kind: it is written to that file.
//
// Comments right above a block of commands change how it is run:
//   <!-- runs on: a GPU -->   (or a cluster, another machine, a quiet hour): not run. `pleat train` is planned
//                             instead, other sub-commands are held against their --help, ./dev against its own
//   <!-- runs on: 8 ranks --> the same, planned for that many ranks
//   <!-- with: --set train.steps=3 -->   appended to every `pleat train` of the block, to keep the test short
//   <!-- exits: 65 -->        the exit code every command of the block must have
//   <!-- first: COMMAND -->   run before the block, not shown to readers; `small_runs FOLDER...` makes runs of two
//                             steps, of conversations where the folder's name has "chat" in it
#pragma once

#include <string>
#include <vector>

namespace pleat::testing {

struct TourCommand {
  int line = 0;  // of the document
  std::string text;
  int exit_code = 0;
  bool planned = false;      // not run here
  std::string ranks, extra;  // of the marks `runs on` and `with`
};

struct TourPage {
  std::string name;
  std::vector<TourCommand> commands;
  std::vector<std::string> faults;  // "README.md:12: ..."
};

TourPage read_tour(const std::string& name, const std::string& text);

// Runs the page in `folder`, which gets links to everything of the checkout but its builds and runs. Returns what
// went wrong, with the last lines of output; empty: nothing.
std::string run_tour(const TourPage& page, const std::string& folder);

// `pleat ...` in running text: every option must be one of that sub-command. Returns faults.
std::vector<std::string> check_inline_commands(const std::string& name, const std::string& text,
                                               const std::string& folder);

}  // namespace pleat::testing
