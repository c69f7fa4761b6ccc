// pleat help: what --help says, the other way round, as people type it.
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "command.h"
#include "config/nearest.h"

namespace pleat::apps {
namespace {

int show_help(const CLI::App& root, const std::vector<std::string>& words) {
  const CLI::App* at = &root;
  std::string name = root.get_name();
  for (const std::string& word : words) {
    const auto below = at->get_subcommands([&](const CLI::App* sub) { return sub->get_name() == word; });
    if (below.empty()) {
      std::vector<std::string> names;
      for (const CLI::App* sub : at->get_subcommands([](const CLI::App*) { return true; }))
        names.push_back(sub->get_name());
      if (names.empty()) base::fail("'{}' has no sub-command '{}'", at->get_name(), word);
      base::fail("there is no sub-command '{}'; the nearest is '{}'", word,
                 config::nearest_word(word, names));
    }
    at = below.front();
    name += " " + word;
  }
  fmt::print("{}", at->get_formatter()->make_help(at, name, CLI::AppFormatMode::Normal));
  return 0;
}

}  // namespace

void add_help(CLI::App& command, Action& chosen) {
  auto words = std::make_shared<std::vector<std::string>>();
  command.add_option("sub-command", *words, "The one to explain (default: all, a line each)");
  add_example(command, "pleat help data tokenize");
  command.callback([words, &command, &chosen] {
    chosen = [words, &command] { return show_help(*command.get_parent(), *words); };
  });
}

}  // namespace pleat::apps
