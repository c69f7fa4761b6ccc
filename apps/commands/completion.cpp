// pleat completion: a script that completes sub-commands, options and configuration keys. It is made of the
// command line itself and of the schema, so it cannot lag behind them. Both shells share the tables below;
// they differ in how a word is read and answered.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <set>
#include <string_view>

#include "command.h"
#include "config/schema.h"

namespace pleat::apps {
namespace {

constexpr char kBash[] = R"sh(_pleat() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command='' word key='' i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
    case " $(_pleat_commands "$command") " in
      *" $word "*) command="${command:+$command }$word" ;;
      *) break ;;
    esac
  done
  COMPREPLY=()
  # The shell cuts a word at '=': --set KEY = VALUE.
  if [[ $COMP_CWORD -ge 4 && $prev == '=' && ${COMP_WORDS[COMP_CWORD - 3]} == --set ]]; then
    key=${COMP_WORDS[COMP_CWORD - 2]}
  elif [[ $COMP_CWORD -ge 3 && $cur == '=' && ${COMP_WORDS[COMP_CWORD - 2]} == --set ]]; then
    key=$prev cur=''
  fi
  if [[ -n $key ]]; then
    COMPREPLY=($(compgen -W "$(_pleat_key_values "$key")" -- "$cur"))
  elif [[ $prev == --set ]]; then
    COMPREPLY=($(compgen -S = -W "$(_pleat_keys)" -- "$cur"))
    compopt -o nospace 2> /dev/null
  elif [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$(_pleat_options "$command")" -- "$cur"))
  elif word=$(_pleat_values "$command $prev") && [[ -n $word ]]; then
    COMPREPLY=($(compgen -W "$word" -- "$cur"))
  elif word="$(_pleat_commands "$command")$(_pleat_words "$command")" && [[ -n $word ]]; then
    COMPREPLY=($(compgen -W "$word" -- "$cur"))
  fi
}
complete -o default -F _pleat pleat
)sh";

constexpr char kZsh[] = R"sh(_pleat() {
  local cur=${words[CURRENT]} prev=${words[CURRENT-1]} command='' word list i
  for ((i = 2; i < CURRENT; ++i)); do
    word=${words[i]}
    case " $(_pleat_commands "$command") " in
      *" $word "*) command="${command:+$command }$word" ;;
      *) break ;;
    esac
  done
  if [[ $prev == --set && $cur == *=* ]]; then
    list=$(_pleat_key_values "${cur%%=*}")
    compadd -P "${cur%%=*}=" -- ${=list} || _files -P "${cur%%=*}="
  elif [[ $prev == --set ]]; then
    list=$(_pleat_keys)
    compadd -S = -- ${=list}
  elif [[ $cur == -* ]]; then
    list=$(_pleat_options "$command")
    compadd -- ${=list}
  elif list=$(_pleat_values "$command $prev") && [[ -n $list ]]; then
    compadd -- ${=list}
  elif list="$(_pleat_commands "$command")$(_pleat_words "$command")" && [[ -n $list ]]; then
    compadd -- ${=list}
  else
    _files
  fi
}
if [[ ${funcstack[1]} == _pleat ]]; then _pleat "$@"; else compdef _pleat pleat; fi
)sh";

// A shell function that prints the words of a row.
class Switch {
 public:
  explicit Switch(std::string_view name) : text_(fmt::format("{}() {{\n  case \"$1\" in\n", name)) {}
  void row(std::string_view key, const std::vector<std::string>& words) {
    if (!words.empty()) text_ += fmt::format("    '{}') echo '{}' ;;\n", key, fmt::join(words, " "));
  }
  std::string text() const { return text_ + "  esac\n}\n"; }

 private:
  std::string text_;
};

// What an option may be, taken from how --help shows its checks: "TEXT:{auto,text,jsonl}", "{f32->float32}".
std::vector<std::string> choices_of(const CLI::Option& option) {
  std::vector<std::string> out;
  const std::string type = option.get_type_name();
  for (size_t open = type.find('{'); open != type.npos; open = type.find('{', open + 1)) {
    const size_t close = std::min(type.find('}', open), type.size());
    for (size_t at = open + 1; at < close;) {
      const size_t end = std::min(type.find(',', at), close);
      const std::string word = type.substr(at, end - at);
      out.push_back(word.substr(0, word.find("->")));
      at = end + 1;
    }
  }
  return out;
}

struct Tables {
  Switch commands{"_pleat_commands"}, options{"_pleat_options"}, values{"_pleat_values"},
      words{"_pleat_words"};

  void add(const CLI::App& app, const std::string& path) {
    std::vector<std::string> below, names;
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
      below.push_back(command->get_name());
    commands.row(path, below);
    for (const CLI::Option* option : app.get_options()) {
      if (option->get_positional()) words.row(path, choices_of(*option));
      if (option->get_group().empty()) continue;  // switches of tests
      for (const std::string& name : option->get_lnames()) {
        names.push_back("--" + name);
        values.row(path + " --" + name, choices_of(*option));
      }
    }
    options.row(path, names);
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
      add(*command, path.empty() ? command->get_name() : path + " " + command->get_name());
  }
};

std::string script(const CLI::App& root, const std::string& shell) {
  Tables tables;
  tables.add(root, "");
  Switch key_values("_pleat_key_values");
  std::vector<std::string> keys;
  std::set<std::string> sections;
  for (const config::Key& key : config::schema()) {
    keys.push_back(key.path);
    for (size_t dot = key.path.find('.'); dot != key.path.npos; dot = key.path.find('.', dot + 1))
      sections.insert(key.path.substr(0, dot));
    const config::Value value = key.default_value();
    if (std::holds_alternative<bool>(value)) key_values.row(key.path, {"true", "false"});
    if (std::holds_alternative<std::string>(value)) key_values.row(key.path, key.choices);
  }
  std::vector<std::string> explained(sections.begin(), sections.end());
  explained.insert(explained.end(), keys.begin(), keys.end());
  tables.words.row("explain-config", explained);
  return fmt::format("{}{}{}{}{}_pleat_keys() {{ echo '{}'; }}\n{}{}",
                     shell == "zsh" ? "#compdef pleat\n" : "# bash completion of pleat\n",
                     tables.commands.text(), tables.options.text(), tables.values.text(), tables.words.text(),
                     fmt::join(keys, " "), key_values.text(), shell == "zsh" ? kZsh : kBash);
}

}  // namespace

void add_completion(CLI::App& command, Action& chosen) {
  auto shell = std::make_shared<std::string>();
  command.add_option("shell", *shell, "bash or zsh")->required()->check(CLI::IsMember({"bash", "zsh"}));
  add_example(command,
              "pleat completion bash > ~/.local/share/bash-completion/completions/pleat\n"
              "  pleat completion zsh > ~/.zfunc/_pleat");
  command.callback([shell, &command, &chosen] {
    chosen = [shell, &command] {
      fmt::print("{}", script(*command.get_parent(), *shell));
      return 0;
    };
  });
}

}  // namespace pleat::apps
