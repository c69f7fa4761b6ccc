// Standard input, output and error of a command, made fit for hard use. Called once, first thing in main.
//
// Standard error carries progress and messages: losing them must never stop a run. Writes to it that fail (a
// full disk, a closed pipe) are dropped. Standard output carries results: a failed write ends the command
// with ExitCode::Storage (output_failed). A descriptor 0, 1 or 2 that is closed at start is taken, so that no
// file opened later gets its number and messages are never written into data.
//
// Both streams are made safe for a terminal (base/terminal_text.h): standard error always, because logs are
// read on terminals too, standard output where it is one. In a pipe or file it keeps every byte.
#pragma once

#include <string>
#include <string_view>

namespace pleat::base {

// Also ignores SIGPIPE and SIGXFSZ: what they stand for then arrives as an error of the write (EPIPE, EFBIG).
void prepare_standard_streams();

// Flushes standard output. Empty: all of it was taken; else why not, for people. `reader_left`: it was a pipe
// whose reader went away, which is no fault (`| head`), though the output is not whole. `error`: of a write
// that failed before, 0 where none is known.
struct OutputState {
  std::string fault = {};
  bool reader_left = false;
};
OutputState finish_standard_output(int error);

// Bytes for standard error that steer the terminal: a line written over. Nothing else may go this way; the
// caller keeps foreign text out.
void write_status(std::string_view bytes);

}  // namespace pleat::base
