#include "tour/tour_support.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "support/process.h"

namespace pleat::testing {
namespace {

namespace fs = std::filesystem;

// Stands for the binary. Planning: a training run becomes a plan, the rest is held against its --help.
constexpr char kPleat[] = R"sh(#!/bin/bash
binary='@BINARY@'
if [[ -n ${TOUR_PLAN-} && ${1-} == launch ]]; then  # what the ranks would do
  while shift; do
    case ${1-} in
      --ranks | --gpus) export TOUR_RANKS=$2; shift ;;
      --restarts | --grace) shift ;;
      *) exec "$0" "$@" ;;
    esac
  done
fi
if [[ -z ${TOUR_PLAN-} ]]; then
  [[ $0 != */cuda/* ]] || { echo "a GPU build is not at hand: mark the block 'runs on: a GPU'" >&2; exit 1; }
  if [[ (${1-} == train || " ${*:1:4} " == " launch "*" train ") && -n ${TOUR_WITH-} ]]; then eval "set -- \"\$@\" $TOUR_WITH"; fi
  exec "$binary" "$@"
fi
PATH=/usr/bin:/bin
command=() options=()
for word in "$@"; do
  case $word in
    --*) options+=("${word%%=*}") ;;
    *) [[ ${#options[@]} -gt 0 || ${#command[@]} -gt 1 ]] || command+=("$word") ;;
  esac
done
help=$("$binary" "${command[@]}" --help 2> /dev/null) || help=$("$binary" "${command[0]-}" --help) || exit 1
for option in "${options[@]}"; do
  [[ $help == *"  $option"[\ $'\n'=]* || $help == *"$option TEXT"* ]] || { echo "pleat ${command[0]} has no option $option" >&2; exit 1; }
done
[[ ${1-} == train ]] || exit 0
shift
plan=() ranks=${TOUR_RANKS-}
while [[ $# -gt 0 ]]; do
  case $1 in
    --set) plan+=("$1" "$2"); shift ;;
    --ranks) ranks=$2; shift ;;
    --*) [[ ${2-} == --* || $# -eq 1 || $1 == --quiet ]] || shift ;;
    *) plan=("$1" "${plan[@]}") ;;
  esac
  shift
done
[[ -z $ranks ]] || plan+=(--ranks "$ranks")
eval "plan+=(${TOUR_WITH-})"
exec "$binary" plan "${plan[@]}"
)sh";

// Stands for mpirun and srun: takes the number of ranks and hands over to what it would start.
constexpr char kLauncher[] = R"sh(#!/bin/bash
[[ -n ${TOUR_PLAN-} ]] || { echo "$0 is not at hand: mark the block 'runs on: N ranks'" >&2; exit 1; }
while [[ $# -gt 0 && $1 != pleat && $1 != */pleat ]]; do
  case $1 in -n | -np | --ntasks) export TOUR_RANKS=$2; shift ;; esac
  shift
done
[[ $# -gt 0 ]] || { echo "no pleat is started" >&2; exit 1; }
exec "$@"
)sh";

constexpr char kDev[] = R"sh(#!/bin/bash
[[ -n ${TOUR_PLAN-} ]] || { echo "./dev builds: mark the block 'runs on: a quiet hour'" >&2; exit 1; }
PATH=/usr/bin:/bin
'@SOURCE@/dev' help | grep -q "^  $1 " || { echo "./dev has no command '$1'" >&2; exit 1; }
)sh";

// Makes the run folders that pages take for granted, of two steps each.
constexpr char kSmallRuns[] = R"sh(#!/bin/bash
set -e
short=(--quiet --set train.steps=2 --set train.seq_len=64 --set train.micro_batch=2 --set optimizer.warmup_steps=1
  --set train.eval_every=0)
cat docs/*.md > small.txt
for run in "$@"; do
  case $run in
    *chat*)
      for n in $(seq 200); do
        echo '{"messages": [{"role": "user", "content": "And '$n'?"}, {"role": "assistant", "content": "'$n' it is."}]}'
      done > small.jsonl
      pleat data train-tokenizer small.txt --vocab-size 600 --out "$run-tokenizer/tokenizer.json" \
        --special '<|im_start|>' --special '<|im_end|>'
      pleat train configs/demo.toml "${short[@]}" --set data.train=small.jsonl --set data.tokenizer="$run-tokenizer" \
        --set chat.template=chatml --set data.separator= --set data.valid_split=0.1 --set log.run_dir="$run" ;;
    *) pleat train configs/demo.toml "${short[@]}" --set data.train=small.txt --set log.run_dir="$run" ;;
  esac
done
)sh";

void write_script(const std::string& path, std::string text) {
  for (const auto& [mark, value] :
       {std::pair{"@BINARY@", PLEAT_BINARY}, std::pair{"@SOURCE@", PLEAT_SOURCE_DIR}})
    for (size_t at; (at = text.find(mark)) != text.npos;) text.replace(at, std::string(mark).size(), value);
  fs::create_directories(fs::path(path).parent_path());
  write_file(path, text);
  fs::permissions(path, fs::perms::owner_all);
}

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// A checkout as a new user sees it, without builds and runs of this one.
void furnish(const std::string& folder) {
  const std::set<std::string> own = {"build", "runs", "dev", ".git"};
  for (const auto& entry : fs::directory_iterator(PLEAT_SOURCE_DIR))
    if (const std::string name = entry.path().filename(); !own.contains(name))
      fs::create_symlink(entry.path(), folder + "/" + name);
  for (const char* place : {"build/cpu/pleat", "build/cuda/pleat", "build/tour/pleat"})
    write_script(folder + "/" + place, kPleat);
  for (const char* launcher : {"mpirun", "srun"}) write_script(folder + "/build/tour/" + launcher, kLauncher);
  write_script(folder + "/build/tour/small_runs", kSmallRuns);
  write_script(folder + "/dev", kDev);
}

}  // namespace

TourPage read_tour(const std::string& name, const std::string& text) {
  TourPage page{name, {}, {}};
  std::istringstream lines(text);
  std::string line, language, file;
  std::map<std::string, std::string> marks;
  std::vector<std::string> first;
  bool inside = false, checked = false;
  static const std::regex mark_line(
      R"(^\s*<!-- (runs on|with|exits|first|file|from|output of)(?::)? (.*) -->\s*$)");
  TourCommand open;
  std::string end_of_document;  // of a here-document
  const auto finish = [&] {
    if (!open.text.empty()) page.commands.push_back(open);
    open = {};
  };
  const auto mark = [&](const char* key) { return marks.contains(key) ? marks.at(key) : std::string(); };
  for (int number = 1; std::getline(lines, line); ++number) {
    const size_t start = line.find_first_not_of(' ');
    const bool fence = start != line.npos && line.compare(start, 3, "```") == 0;
    if (fence && !inside) {
      language = line.substr(start + 3);
      inside = true;
      checked = marks.contains("from") || marks.contains("output of");
      if (language.empty() && !checked)
        page.faults.push_back(
            fmt::format("{}:{}: a block without a word for what it is: ```sh or ```text", name, number));
      for (const std::string& command : first) page.commands.push_back({number, command, 0, false, "", ""});
      file.clear();
    } else if (fence) {
      finish();
      if (const std::string to = mark("file"); !to.empty())
        page.commands.push_back(
            {number, fmt::format("cat > {} << 'END OF FILE'\n{}END OF FILE", to, file), 0, false, "", ""});
      inside = false;
      marks.clear();
      first.clear();
    } else if (inside && marks.contains("file")) {
      file += line + "\n";
    } else if (inside && language == "sh" && !checked) {
      if (open.text.empty()) {
        if (start == line.npos || line[start] == '#') continue;
        open = {number, "", 0, marks.contains("runs on"), "", mark("with")};
        if (const std::string code = mark("exits"); !code.empty()) open.exit_code = std::stoi(code);
        const std::string where = mark("runs on");
        if (std::smatch m; std::regex_match(where, m, std::regex(R"((\d+) ranks.*)"))) open.ranks = m[1];
        if (std::smatch m; std::regex_search(line, m, std::regex(R"(<<-? *'?(\w+)'?)")))
          end_of_document = m[1];
      }
      open.text += (open.text.empty() ? "" : "\n") + line;
      const bool goes_on = end_of_document.empty() ? line.ends_with('\\') : line != end_of_document;
      if (!goes_on) {
        end_of_document.clear();
        finish();
      }
    } else if (std::smatch m; !inside && std::regex_match(line, m, mark_line)) {
      if (m[1] == "first")
        first.push_back(m[2]);
      else
        marks[m[1]] = m[2];
    } else if (!inside && start != line.npos) {
      if (std::regex_search(line, std::regex(R"(^ {4,}(build/|pleat |[.]/dev |mpirun |.*[|] *pleat ))")))
        page.faults.push_back(
            fmt::format("{}:{}: a command outside a block: put it between ```sh and ```", name, number));
      if (!marks.empty() || !first.empty())
        page.faults.push_back(fmt::format("{}:{}: no fenced block follows the comment above", name, number));
      marks.clear();
      first.clear();
    }
  }
  return page;
}

std::string run_tour(const TourPage& page, const std::string& folder) {
  furnish(folder);
  std::string script = fmt::format(
      "cd {}\nexec < /dev/null\nunset TOUR_PLAN TOUR_WITH TOUR_RANKS OMPI_COMM_WORLD_SIZE\n"
      "plain=$PWD/build/tour:$PATH planning=$PWD/build/tour\nPATH=$plain\n"
      "command_not_found_handle() {{ [[ -n ${{TOUR_PLAN-}} ]] || {{ echo \"$1: command not found\" >&2; "
      "return 127; }}; }}\n"
      "expect() {{ [[ $1 == \"$2\" ]] || {{ echo \"@@ ended with code $1, needed $2\"; exit 1; }}; }}\n",
      quoted(folder));
  for (const TourCommand& c : page.commands) {
    script += fmt::format("echo \"@@ $SECONDS s\" {}\n",
                          quoted(fmt::format("{}:{}: {}", page.name, c.line, c.text)));
    if (c.planned)
      script += fmt::format(
          "PATH=$planning TOUR_PLAN=1 TOUR_RANKS={} TOUR_WITH={}; export TOUR_PLAN TOUR_RANKS TOUR_WITH\n",
          quoted(c.ranks), quoted(c.extra));
    else
      script += fmt::format("export TOUR_WITH={}\n", quoted(c.extra));
    script += fmt::format("{}\nexpect $? {}\n", c.text, c.exit_code);
    if (c.planned) script += "PATH=$plain; unset TOUR_PLAN TOUR_RANKS\n";
  }
  script += "echo @@ done\n";
  write_file(folder + "/build/tour.bash", script);
  const std::string log = folder + "/build/tour.log";
  const int status = std::system(
      fmt::format("bash --norc {0}/build/tour.bash > {0}/build/tour.log 2>&1", quoted(folder)).c_str());
  const std::string said = read_file(log);
  if (status == 0 && said.ends_with("@@ done\n")) return "";
  // From the command that failed on.
  const size_t ended = said.rfind("@@ ended");
  const size_t last = said.rfind("@@ ", ended == said.npos || ended == 0 ? said.npos : ended - 1);
  const std::string all = last == said.npos ? said : said.substr(last);
  return all.size() < 3000 ? all : all.substr(0, 500) + "\n...\n" + all.substr(all.size() - 2500);
}

std::vector<std::string> check_inline_commands(const std::string& name, const std::string& text,
                                               const std::string& folder) {
  std::vector<std::string> faults;
  static std::map<std::string, std::string> helps;
  const auto help_of = [&](const std::vector<std::string>& words) -> const std::string& {
    std::string& help = helps[fmt::format("{}", fmt::join(words, " "))];
    if (help.empty()) {
      std::vector<std::string> arguments = words;
      arguments.push_back("--help");
      const Ended ended = run_pleat(folder, arguments);
      help = ended.code == 0 ? ended.out : "none";
    }
    return help;
  };
  std::istringstream lines(text);
  bool inside = false;
  int number = 0;
  static const std::regex span("`pleat ([^`]+)`");
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (const size_t at = line.find_first_not_of(' '); at != line.npos && line.compare(at, 3, "```") == 0)
      inside = !inside;
    if (inside) continue;
    for (std::sregex_iterator at(line.begin(), line.end(), span), end; at != end; ++at) {
      std::istringstream words((*at)[1].str());
      std::vector<std::string> command, options;
      for (std::string word; words >> word;) {
        if (word.starts_with("--"))
          options.push_back(word.substr(0, word.find_first_of("=,")));
        else if (options.empty() && command.size() < 2 && std::regex_match(word, std::regex("[a-z-]+")))
          command.push_back(word);
      }
      if (command.empty() || command[0].starts_with("-")) continue;  // --version, --help
      if (help_of(command) == "none" && command.size() > 1) command.resize(1);
      const std::string& help = help_of(command);
      if (help == "none")
        faults.push_back(fmt::format("{}:{}: there is no `pleat {}`", name, number, fmt::join(command, " ")));
      for (const std::string& option : options)
        if (help != "none" && !std::regex_search(help, std::regex(option + "[ \n,=]")))
          faults.push_back(fmt::format("{}:{}: `pleat {}` has no option {}", name, number,
                                       fmt::join(command, " "), option));
    }
  }
  return faults;
}

}  // namespace pleat::testing
