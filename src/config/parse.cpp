// Text to Config: TOML through toml++, then `--set` overrides, then validation of the whole.
//
// Configs are hostile until validated. Size, nesting and string lengths are bounded before anything is built
// from them; toml++ is kept out of every header.
//
// toml++ 3.3 meets some bad input with an assertion, which would stop the process in one build and be an
// unchecked assumption in another. Here a failed one is a refusal in every build.
#include <stdexcept>

namespace pleat::config {
struct TomlAssertion : std::runtime_error {
  using std::runtime_error::runtime_error;
};
[[noreturn]] static void toml_assertion_failed() { throw TomlAssertion("toml++ cannot parse this text"); }
}  // namespace pleat::config

#undef NDEBUG
#define TOML_ASSERT(expr) (static_cast<bool>(expr) ? void() : ::pleat::config::toml_assertion_failed())
#define TOML_MAX_NESTED_VALUES 16
#include <toml++/toml.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/regular_file.h"
#include "config/config.h"
#include "config/flat_toml.h"
#include "config/quote.h"
#include "config/run_files.h"
#include "config/schema.h"
#include "config/validate.h"

namespace pleat::config {

namespace {

constexpr size_t kMostBytes = size_t{1} << 20;
// toml++ frees tables recursively and does not bound dotted keys, so they are bounded here.
constexpr int kMostDotsPerLine = 256;

// Where a value came from, for messages.
struct Origin {
  std::string where;
};

bool begins_key(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
         c == '"' || c == '\'';
}

// What toml++ itself gets wrong, line by line: chains of dotted keys, and headers without a name.
void check_line(std::string_view line, int number, std::string_view source) {
  // Comments too: a '#' at the beginning of a line may stand inside a string.
  if (std::count(line.begin(), line.end(), '.') > kMostDotsPerLine)
    base::fail("{}:{}: more than {} dots in one line; keys have at most 4 parts", source, number,
               kMostDotsPerLine);
  const size_t first = line.find_first_not_of(" \t");
  if (first == std::string_view::npos || line[first] != '[') return;
  const size_t name = line.find_first_not_of(" \t", first + (line.substr(first).starts_with("[[") ? 2 : 1));
  if (name == std::string_view::npos || !(begins_key(line[name]) || line[name] == ']'))
    base::fail("{}:{}:{}: not valid TOML: '[' must be followed by the name of a section", source, number,
               first + 1);
}

void check_lines(std::string_view text, std::string_view source) {
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    check_line(text.substr(0, end), number, source);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
}

std::string node_type(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "a list";
    case toml::node_type::string:
      return "a string";
    case toml::node_type::integer:
      return "an integer";
    case toml::node_type::floating_point:
      return "a number with a fraction";
    case toml::node_type::boolean:
      return "true or false";
    default:
      return "a date or time";
  }
}

std::string node_text(const toml::node& node) {
  if (const auto* text = node.as_string()) return quote(text->get());
  if (const auto* number = node.as_integer()) return fmt::format("{}", number->get());
  if (const auto* number = node.as_floating_point()) return to_text(number->get());
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  if (const auto* list = node.as_array()) return fmt::format("[... {} values]", list->size());
  return "[...]";
}

[[noreturn]] void wrong_type(const Key& key, const toml::node& node, const Origin& origin) {
  base::fail("{}: {} = {} is {}; needed is {}{}{}, as in {}", origin.where, key.path, node_text(node),
             node_type(node), key.type_name(), key.allowed().empty() ? "" : ", ", key.allowed(),
             to_text(key.default_value()));
}

// Nothing where the node cannot be a T. Integers are taken for numbers when nothing is lost.
template <class T>
std::optional<T> scalar(const toml::node& node) {
  if constexpr (std::is_same_v<T, double>) {
    if (const auto* number = node.as_floating_point()) return number->get();
    if (const auto* number = node.as_integer()) {
      constexpr int64_t kExact = int64_t{1} << 53;
      if (number->get() >= -kExact && number->get() <= kExact) return static_cast<double>(number->get());
    }
    return std::nullopt;
  } else {
    const auto* value = node.as<T>();
    if (value == nullptr) return std::nullopt;
    return value->get();
  }
}

struct FromNode {
  const Key& key;
  const toml::node& node;
  const Origin& origin;

  template <class T>
  Value operator()(const T&) const {
    const std::optional<T> value = scalar<T>(node);
    if (!value) wrong_type(key, node, origin);
    return *value;
  }
  // A single value stands for a list of one.
  template <class T>
  Value operator()(const std::vector<T>&) const {
    std::vector<T> values;
    const toml::array* list = node.as_array();
    if (list == nullptr) return std::vector<T>{std::get<T>((*this)(T{}))};
    for (const toml::node& element : *list) {
      const std::optional<T> value = scalar<T>(element);
      if (!value) wrong_type(key, node, origin);
      values.push_back(*value);
    }
    return values;
  }
};

void assign(Config& config, const Key& key, const toml::node& node, const Origin& origin) {
  Value value = std::visit(FromNode{key, node, origin}, key.default_value());
  config.asked[key.path] = to_text(value);
  key.set(config, std::move(value));
}

[[noreturn]] void unknown_key(std::string_view path, const Origin& origin) {
  base::fail("{}: unknown key {}; the nearest is \"{}\"", origin.where, quote(path), nearest_key(path));
}

Origin origin_of(const toml::node& node, std::string_view source) {
  return {fmt::format("{}:{}", source, node.source().begin.line)};
}

void walk(Config& config, const toml::table& table, const std::string& prefix, std::string_view source) {
  for (const auto& [name, node] : table) {
    const std::string path =
        prefix.empty() ? std::string(name.str()) : prefix + "." + std::string(name.str());
    const Origin origin = {fmt::format("{}:{}", source, name.source().begin.line)};
    // A quoted name with a dot inside is one name, and no key has such a one.
    if (name.str().find('.') != std::string_view::npos) unknown_key(path, origin);
    if (const Key* key = find_key(path)) {
      assign(config, *key, node, origin_of(node, source));
    } else if (!is_section(path)) {
      unknown_key(path, origin);
    } else if (const toml::table* inner = node.as_table()) {
      walk(config, *inner, path, source);
    } else {
      base::fail("{}: {} = {} is {}; needed is a section [{}] with its keys", origin.where, path,
                 node_text(node), node_type(node), path);
    }
  }
}

toml::table parse_toml(std::string_view text, std::string_view source) {
  check_lines(text, source);
  try {
    return toml::parse(text, source);
  } catch (const toml::parse_error& error) {
    base::fail("{}:{}:{}: not valid TOML: {}", source, error.source().begin.line, error.source().begin.column,
               error.description());
  } catch (const TomlAssertion& error) {
    base::fail("{}: not valid TOML: {}", source, error.what());
  }
}

bool is_text(const Key& key) { return std::holds_alternative<std::string>(key.default_value()); }
bool is_text_list(const Key& key) {
  return std::holds_alternative<std::vector<std::string>>(key.default_value());
}

// On a command line a string key needs no quotes; everything else is TOML.
bool is_bare_text(const Key& key, std::string_view value) {
  const bool quoted = value.starts_with('"') || value.starts_with('\'');
  return (is_text(key) && !quoted) || (is_text_list(key) && !quoted && !value.starts_with('['));
}

// Neither a list, a table nor a string: what TOML says of such a word it cannot read helps nobody.
bool is_lone_word(std::string_view text) { return text.find_first_of("[]{}\"'=") == std::string_view::npos; }

[[noreturn]] void wrong_word(const Key& key, std::string_view word, const Origin& origin) {
  base::fail("{}: {} = {} is not {}; needed is {}{}{}, as in {}", origin.where, key.path, printable(word),
             key.type_name(), key.type_name(), key.allowed().empty() ? "" : ", ", key.allowed(),
             to_text(key.default_value()));
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// `replaced` gets a few words where the file says something else.
void apply_set(Config& config, std::string_view set, std::set<std::string>& seen,
               std::vector<std::string>& replaced) {
  const Origin origin = {"--set " + printable(set)};
  const size_t equals = set.find('=');
  if (equals == std::string_view::npos)
    base::fail("{}: needed is key=value, as in moe.top_k=2", origin.where);
  if (set.size() > kMostBytes || set.find_first_of("\n\r") != std::string_view::npos)
    base::fail("{}: the value must be a single line of at most {} bytes", origin.where, kMostBytes);
  const std::string path(trimmed(set.substr(0, equals)));
  const std::string_view text = trimmed(set.substr(equals + 1));
  const Key* key = find_key(path);
  if (key == nullptr && is_section(path))
    base::fail("{}: {} is a section; set its keys one by one", origin.where, path);
  if (key == nullptr) unknown_key(path, origin);

  const std::string before = config.asked.contains(path) ? config.asked[path] : "";
  if (text.empty()) {
    key->set(config, key->default_value());
    config.asked.erase(path);
  } else {
    // Bare words become TOML strings, so that they pass the same checks as those in a file.
    const std::string literal = is_bare_text(*key, text) ? to_text(std::string(text)) : std::string(text);
    try {
      const toml::table table = parse_toml("value = " + literal, origin.where);
      assign(config, *key, *table.get("value"), origin);
    } catch (const base::Error&) {
      if (!is_lone_word(literal)) throw;
      wrong_word(*key, literal, origin);
    }
  }
  const std::string now = text.empty() ? "the default" : config.asked[path];
  if (!seen.insert(path).second)
    config.notes.push_back(fmt::format("--set {} was given more than once: {} takes the place of {}", path,
                                       now, before.empty() ? "the default" : before));
  else if (!before.empty() && before != now)
    replaced.push_back(fmt::format("{} = {} (not {})", path, now, before));
}

// A group all of whose settings were taken back is no group.
void drop_empty_groups(Config& config) {
  std::erase_if(config.optimizer.groups, [&](const auto& entry) {
    const std::string prefix = "optimizer.groups." + entry.first + ".";
    const auto first = config.asked.lower_bound(prefix);
    return first == config.asked.end() || !first->first.starts_with(prefix);
  });
}

// A run's file used in another place: where a set moves the run to another device or element type, keys that
// only the former one looks at go back to their defaults, with a note. They had an effect in the file, and
// whoever changes the place need not know them. A key that was itself set stays, and is refused.
void drop_keys_left_behind(Config& config, const Config& file, const std::set<std::string>& sets) {
  const auto is_place = [](const std::string& path) {
    return path == "device.kind" || path == "model.dtype";
  };
  for (const Key& key : schema()) {
    if (!config.asked.contains(key.path) || sets.contains(key.path) || key.unmet(file)) continue;
    const Condition* unmet = key.unmet(config);
    if (!unmet || !std::all_of(unmet->decided_by.begin(), unmet->decided_by.end(), is_place)) continue;
    config.notes.push_back(fmt::format("{} = {} of the file is left out: it applies when {}", key.path,
                                       config.asked[key.path], unmet->text));
    key.set(config, key.default_value());
    config.asked.erase(key.path);
  }
}

// A run started with the settings of another one keeps its checkpoints to itself.
void leave_the_original(Config& config, const Config& file, const std::set<std::string>& sets) {
  namespace fs = std::filesystem;
  const auto place = [](const std::string& path) { return fs::weakly_canonical(fs::absolute(path) / "."); };
  if (place(config.log.run_dir) == place(file.log.run_dir)) return;
  config.notes.push_back(
      fmt::format("{} is a run of its own with the settings of {}, but not its weights; --init {} starts one "
                  "from those",
                  config.log.run_dir, file.log.run_dir, file.log.run_dir));
  if (sets.contains("checkpoint.dir")) return;
  config.checkpoint.dir.clear();
  config.asked.erase("checkpoint.dir");
}

std::string read_text(const std::string& path, const char* what = "the configuration file") {
  std::ifstream file(path, std::ios::binary);
  if (!file) base::fail("cannot open {} {}", what, quote(path));
  std::string text(kMostBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (file.gcount() == 0 && !file.eof()))
    base::fail_with(base::ExitCode::Storage, "cannot read {} {}", what, quote(path));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMostBytes) base::fail("{}: larger than the {} bytes allowed", quote(path), kMostBytes);
  return text;
}

// Empty where there is none: it may get another name at any moment.
std::string text_if_there(const std::string& path) {
  base::require_regular(path);
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  if (file && file.peek() != std::ifstream::traits_type::eof()) text << file.rdbuf();
  return text.str();
}

// `folder`: of the run whose asked.toml the text is; empty: a file of its own.
Config read(std::string_view toml_text, const std::vector<std::string>& sets, std::string_view source_name,
            const std::string& folder) {
  if (toml_text.size() > kMostBytes)
    base::fail("{}: {} bytes of configuration; at most {} are allowed", source_name, toml_text.size(),
               kMostBytes);
  Config config;
  walk(config, parse_toml(toml_text, source_name), "", source_name);
  if (!folder.empty()) config = from_folder(std::move(config), folder);
  const Config file = config;
  std::set<std::string> seen;
  std::vector<std::string> replaced;
  for (const std::string& set : sets) apply_set(config, set, seen, replaced);
  if (!replaced.empty())
    config.notes.insert(config.notes.begin(),
                        fmt::format("by --set, other than in the file: {}", fmt::join(replaced, ", ")));
  drop_keys_left_behind(config, file, seen);
  if (!folder.empty()) leave_the_original(config, file, seen);
  drop_empty_groups(config);
  return config;
}

}  // namespace

Config parse(std::string_view toml_text, const std::vector<std::string>& sets, std::string_view source_name) {
  Config config = read(toml_text, sets, source_name, "");
  validate(config);
  return config;
}

Config parse_record(std::string_view toml_text, const std::vector<std::string>& sets,
                    std::string_view source_name) {
  Config config = read(toml_text, sets, source_name, "");
  config.asked.clear();
  validate_record(config);
  return config;
}

Config read_unchecked(const std::string& path, const std::vector<std::string>& sets) {
  const std::string folder = run_folder_of(path);
  if (folder.empty()) return read(read_text(path), sets, path, "");
  const std::string asked = folder + "/" + kAskedName;
  base::require_regular(asked);  // a file of no run may be a pipe
  const std::string text = read_text(asked);
  require_whole(text, asked);
  return read(text, sets, asked, folder);
}

Config load(const std::string& path, const std::vector<std::string>& sets) {
  Config config = read_unchecked(path, sets);
  validate(config);
  return config;
}

Config read_record(const std::string& folder, const std::vector<std::string>& sets) {
  std::string path = folder + "/" + kRecordName;
  // A stop, or a moment, between the new asked.toml and its record.
  const std::string next_path = folder + "/" + kNextRecordName;
  const std::string next = text_if_there(next_path);
  const bool is_next = !next.empty() && next_record_counts(next, text_if_there(folder + "/" + kAskedName));
  if (is_next) path = next_path;
  base::require_regular(path);
  const std::string text = is_next ? next : read_text(path);
  if (text.find_first_not_of(" \t\r\n") == std::string::npos)
    base::fail_with(base::ExitCode::Storage, "{} is empty: the record of the run was lost{}", quote(path),
                    std::filesystem::exists(folder + "/" + kAskedName)
                        ? "; `pleat train " + folder + "` writes it again"
                        : "");
  if (text.starts_with(kRecordHead)) require_whole(text, path);
  return placed(parse_record(text, sets, path), folder);
}

namespace {

template <class T>
Value flat_list(const toml::array& list, const Origin& origin, const std::string& path) {
  std::vector<T> values;
  for (const toml::node& element : list) {
    const std::optional<T> value = scalar<T>(element);
    if (!value)
      base::fail("{}: {} holds {}; a list has values of one kind: numbers or strings", origin.where, path,
                 node_type(element));
    values.push_back(*value);
  }
  return values;
}

Value flat_value(const toml::node& node, const Origin& origin, const std::string& path) {
  if (const auto* flag = node.as_boolean()) return flag->get();
  if (const auto* number = node.as_integer()) return number->get();
  if (const auto* number = node.as_floating_point()) return number->get();
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* list = node.as_array())
    return !list->empty() && list->front().is_string() ? flat_list<std::string>(*list, origin, path)
                                                       : flat_list<double>(*list, origin, path);
  base::fail("{}: {} is {}; needed is a number, a string, true or false, or a list of them", origin.where,
             path, node_type(node));
}

void flatten(const toml::table& table, const std::string& prefix, std::string_view source,
             std::vector<FlatEntry>& out) {
  for (const auto& [name, node] : table) {
    const Origin origin = {fmt::format("{}:{}", source, name.source().begin.line)};
    const std::string path =
        prefix.empty() ? std::string(name.str()) : prefix + "." + std::string(name.str());
    if (name.str().find('.') != std::string_view::npos)
      base::fail("{}: the name {} has a dot inside", origin.where, quote(std::string(name.str())));
    if (const toml::table* inner = node.as_table())
      flatten(*inner, path, source, out);
    else
      out.push_back({path, flat_value(node, origin, path), origin.where});
  }
}

}  // namespace

std::vector<FlatEntry> flat_toml(std::string_view text, std::string_view source) {
  if (text.size() > kMostBytes)
    base::fail("{}: {} bytes; at most {} are allowed", source, text.size(), kMostBytes);
  std::vector<FlatEntry> out;
  flatten(parse_toml(text, source), "", source, out);
  return out;
}

std::string toml_file_text(const std::string& path) {
  base::require_regular(path);
  return read_text(path, "the file");
}

}  // namespace pleat::config
