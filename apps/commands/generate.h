// What `pleat generate` was asked for, and the part of it that talks.
#pragma once

#include <string>
#include <vector>

#include "command.h"
#include "infer/chat_prompt.h"
#include "infer/generate.h"

namespace pleat::apps {

struct GenerateArguments {
  ModelArgument model;
  std::vector<std::string> prompts, stops;
  std::string prompt_file, system;
  infer::GenerateOptions options;
  int64_t max_tokens = 0, batch = 8, context = 0;
  bool json = false, no_cache = false, ids = false, ignore_end = false, chat = false;
};

// All of standard input; one line end at its end is dropped.
std::string read_standard_input();
// Whether there is somebody to type.
bool is_input_a_terminal();
// Whether standard input is a pipe or a file: what it holds was meant for this command.
bool is_input_given();

// One turn after another until the input ends: `answer` continues the messages, shows what it writes and returns it.
// "/clear" forgets what was said, "/exit" and "/quit" end, "/help" tells these.
void talk(const std::string& system,
          const std::function<std::string(const std::vector<data::ChatMessage>&)>& answer);

// The messages of a conversation that begins.
std::vector<data::ChatMessage> first_messages(const std::string& system);

}  // namespace pleat::apps
