#include <sys/stat.h>
#include <unistd.h>

#include <iostream>
#include <iterator>

#include "base/error.h"
#include "generate.h"

namespace pleat::apps {

std::string read_standard_input() {
  std::string text{std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
  if (std::cin.bad()) base::fail_with(base::ExitCode::Storage, "cannot read standard input");
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

bool is_input_a_terminal() { return ::isatty(STDIN_FILENO) == 1; }

bool is_input_given() {
  struct stat status {};
  return ::fstat(STDIN_FILENO, &status) == 0 && (S_ISFIFO(status.st_mode) || S_ISREG(status.st_mode));
}

std::vector<data::ChatMessage> first_messages(const std::string& system) {
  std::vector<data::ChatMessage> out;
  if (!system.empty()) out.push_back({.role = "system", .content = system});
  return out;
}

void talk(const std::string& system,
          const std::function<std::string(const std::vector<data::ChatMessage>&)>& answer) {
  std::vector<data::ChatMessage> messages = first_messages(system);
  constexpr char kHelp[] =
      "/clear starts anew, /quit or /exit or the end of the input ends, /help says this again; an empty line "
      "does nothing.\n";
  fmt::print(stderr, "{}", kHelp);
  for (std::string line;;) {
    fmt::print(stderr, "> ");
    if (!std::getline(std::cin, line)) break;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    line.erase(line.find_last_not_of(" \t\r") + 1);
    if (line == "/exit" || line == "/quit") return;
    if (line == "/help") {
      fmt::print(stderr, "{}", kHelp);
      continue;
    }
    if (line == "/clear") {
      messages = first_messages(system);
      continue;
    }
    messages.push_back({.role = "user", .content = line});
    try {
      messages.push_back({.role = "assistant", .content = answer(messages)});
    } catch (const base::Error& e) {
      // A conversation that has grown too long, say: the next one need not be.
      fmt::print(stderr, "{}\n", e.what());
      messages.pop_back();
    }
  }
  fmt::print(stderr, "\n");
}

}  // namespace pleat::apps
