#include "parse_fault.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <vector>

#include "config/nearest.h"
#include "config/schema.h"

namespace pleat::apps {
namespace {

using Words = std::vector<std::string>;

const CLI::App& deepest(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : deepest(*parsed.back());
}

std::string help_of(const CLI::App& app) { return fmt::format("`{} --help` lists them", typed_command(app)); }

Words options_of(const CLI::App& command) {
  Words out;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames())
      if (!option->get_group().empty()) out.push_back("--" + name);
  return out;
}

bool takes_sets(const CLI::App& command) { return command.get_option_no_throw("--set") != nullptr; }

// Keys of that name: the whole of it, or its last part; what the command line spells with - has _ there.
Words keys_named(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  Words out;
  for (const config::Key& key : config::schema())
    if (key.path == name || key.path.ends_with("." + name)) out.push_back(key.path);
  return out;
}

std::string sets_of(const Words& keys, const std::string& value) {
  Words sets;
  for (const std::string& key : keys) sets.push_back(fmt::format("--set {}={}", key, value));
  return fmt::format("{}", fmt::join(sets, " or "));
}

// `next`: the word after it, which may be its value.
std::string unknown_option(const CLI::App& app, const std::string& word, const std::string& next) {
  constexpr size_t kMostKeys = 4;
  const CLI::App& command = deepest(app);
  const size_t equals = word.find('=');
  const std::string name = word.substr(0, equals);
  std::string value = equals != word.npos ? word.substr(equals + 1) : next.starts_with('-') ? "" : next;
  if (value.empty()) value = "VALUE";
  const bool root = &command == &app;
  const std::string start =
      fmt::format("there is no option {} of {}", name, root ? "pleat itself" : typed_command(app).substr(6));
  if (takes_sets(command) && name.starts_with("--"))
    if (const Words keys = keys_named(name.substr(2)); !keys.empty() && keys.size() <= kMostKeys)
      return fmt::format("{}; did you mean {}", start, sets_of(keys, value));
  const Words options = options_of(command);
  const std::string nearest = config::nearest_word(name, options);
  if (config::edit_distance(name, nearest) > std::max<size_t>(2, name.size() / 2))
    return fmt::format("{}; {}", start, help_of(app));
  return fmt::format("{}; the nearest is {}", start, nearest);
}

std::string unknown_word(const CLI::App& app, const std::string& word) {
  const std::string start = fmt::format("'{}' is one word too many for {}", word, typed_command(app));
  const std::string key = word.substr(0, word.find('='));
  if (takes_sets(deepest(app)) && word.find('=') != word.npos && key.find('.') != key.npos)
    return fmt::format("{}; did you mean --set {}", start, word);
  return fmt::format("{}; `{} --help` shows what it takes", start, typed_command(app));
}

// What the parser could make nothing of. Nothing where there is no such word.
std::optional<std::string> stray_word(const CLI::App& app) {
  const Words left = app.remaining(true);
  const auto is_option = [](const std::string& w) { return w.size() > 1 && w.starts_with('-'); };
  const auto option = std::find_if(left.begin(), left.end(), is_option);
  if (option != left.end())
    return unknown_option(app, *option, option + 1 == left.end() ? "" : *(option + 1));
  if (!left.empty()) return unknown_word(app, left.front());
  return std::nullopt;
}

// Where there is no upper bound the parser spells the largest double, 309 digits.
std::string with_readable_bounds(std::string text) {
  const size_t begin = text.find(" not in range 0"), largest = text.find(" to 17976931348623157", begin);
  if (begin == std::string::npos || largest == std::string::npos) return text;
  const size_t end = std::min(text.find('\n', largest), text.size());
  const double value = std::strtod(text.c_str() + text.rfind(' ', begin - 1), nullptr);
  return text.replace(begin, end - begin,
                      value < 0 ? " is negative; it must not be" : " is not allowed; it must be above 0");
}

}  // namespace

std::string typed_command(const CLI::App& app) {
  std::string out = "pleat";
  for (const CLI::App* at = &app;;) {
    const auto parsed = at->get_subcommands();
    if (parsed.empty()) return out;
    at = parsed.back();
    out += " " + at->get_name();
  }
}

std::string parse_fault(const CLI::App& app, const CLI::ParseError& error) {
  const std::string text = error.what();
  const auto is = [&](CLI::ExitCodes code) { return error.get_exit_code() == static_cast<int>(code); };
  // A word that was not understood may be the reason why another is missing.
  if (is(CLI::ExitCodes::ExtrasError) || is(CLI::ExitCodes::RequiredError))
    if (const std::optional<std::string> stray = stray_word(app)) return *stray;
  // The hidden --json of pleat itself, which the parser has no name for.
  if (is(CLI::ExitCodes::RequiresError) && text.starts_with(" requires"))
    return "--json before a sub-command goes with --version only; a sub-command that has a --json takes it "
           "after its name";
  std::string fault = with_readable_bounds(text);
  while (fault.ends_with('\n')) fault.pop_back();
  return fmt::format("{} (`{} --help` shows how)", fault, typed_command(app));
}

}  // namespace pleat::apps
