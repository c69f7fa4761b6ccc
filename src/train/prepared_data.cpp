// Text named by a config becomes .bin/.idx in the run folder, once.
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/regular_file.h"
#include "base/replace_file.h"
#include "base/text_name.h"
#include "config/config.h"
#include "data/chat/open_chat.h"
#include "data/dataset_info.h"
#include "data/input/byte_source.h"
#include "data/prepare.h"
#include "data/tokenizer/open_tokenizer.h"
#include "report/format.h"
#include "train/loop.h"
#include "train/run_tokenizer.h"

namespace pleat::train {
namespace {

namespace fs = std::filesystem;

bool is_jsonl(const std::string& path) { return base::text_name(path).kind == base::TextKind::Jsonl; }

// False for what is taken for the prefix of a dataset; throws on what is neither.
bool is_text(const std::string& key, const std::string& path) {
  if (path.empty()) return false;
  if (base::names_text(path)) return true;
  std::error_code ignored;
  if (fs::exists(path + ".idx", ignored) || fs::exists(path + ".bin", ignored)) return false;
  if (fs::is_directory(path, ignored))
    base::fail(
        "{} = \"{}\" is a folder; needed is a .txt or .jsonl file (.gz or .zst may follow), or a .bin/.idx "
        "pair "
        "without its ending, as in {}/NAME",
        key, path, path.ends_with('/') ? path.substr(0, path.size() - 1) : path);
  if (!fs::exists(path, ignored))
    base::fail(
        "{} = \"{}\" is not there: neither '{}' nor a pair '{}.bin' and '.idx'; needed is a .txt or .jsonl "
        "file, or "
        "such a pair ('pleat data tokenize' makes one)",
        key, path, whole_name(path), path);
  data::open_text_bytes(path);  // says what a file of another kind is
  base::fail(
      "'{}' is a file, but not called .txt or .jsonl (.gz or .zst may follow); rename it, or name a "
      ".bin/.idx "
      "pair without its ending",
      path);
}

// As seen from here, where it lies below the current directory.
std::string nearby(const std::string& path) {
  const std::string near = fs::path(path).lexically_proximate(fs::current_path()).string();
  return near.starts_with("..") ? path : near;
}

// The two sides of a preparation; without a split there is one, called as the preparation.
struct Sides {
  std::string prefix, train, valid;
  Sides(const std::string& folder, const std::string& name, int64_t number, bool split)
      : prefix(number == 1 ? folder + "/" + name : fmt::format("{}/{}-{}", folder, name, number)),
        train(split ? prefix + "-train" : prefix),
        valid(split ? prefix + "-validation" : "") {}
  std::string stamp_path() const { return prefix + ".source.json"; }
  std::string stamp() const {
    base::require_regular(stamp_path());
    std::stringstream text;
    if (std::ifstream in(stamp_path()); in) text << in.rdbuf();
    return text.str();
  }
  bool complete() const {
    return fs::exists(train + ".idx") && (valid.empty() || fs::exists(valid + ".idx"));
  }
  bool is_named(const Names& names) const {
    for (const char* end : {"", "-train", "-validation"})
      if (names.contains(whole_name(prefix + end))) return true;
    return false;
  }
};

class Preparer {
 public:
  Preparer(const config::Config& config, const PreparedData& how)
      : config_(config), how_(how), folder_(config.log.run_dir + "/data") {}

  // Prepares `path` under `name` in the run's folder unless it is there already; returns the prefixes of both
  // sides, the second one empty without a split.
  std::pair<std::string, std::string> prepare(const std::string& key, const std::string& path,
                                              const std::string& name, double split) {
    if (!tokenizer_) tokenizer_ = open_run_tokenizer(config_);
    const std::string stamp = stamp_of(path, split);
    if (how_.trained_with)
      if (const std::optional<Sides> own = trained_on(name, split); own) {
        if (own->stamp() != stamp) keep(key, path, own->stamp(), stamp);
        return {own->train, own->valid};
      }
    const Sides sides = place_for(name, split, stamp);
    if (sides.stamp() == stamp && sides.complete()) return {sides.train, sides.valid};
    if (!fs::exists(path))
      base::fail("{} = \"{}\" is not there (looked for '{}')", key, path, whole_name(path));
    if (is_chat(path))
      data::open_chat(chat_template_of(config_.chat), *tokenizer_);  // throws where it is broken
    if (how_.before_writing) how_.before_writing();
    fs::create_directories(folder_);
    fs::remove(sides.stamp_path());  // a preparation cut short must not leave new files beside an old stamp
    data::PrepareOptions o;
    o.inputs = {path};
    o.json_key = config_.data.jsonl_key;
    if (!is_jsonl(path)) o.separator = config_.data.separator;
    if (is_chat(path)) o.chat = chat_template_of(config_.chat);
    o.tokenizer_path =
        data::absolute_tokenizer(how_.tokenizer_name.empty() ? config_.data.tokenizer : how_.tokenizer_name);
    o.num_threads = config_.device.threads;
    o.output_prefix = sides.prefix;
    if (split > 0) o.split = 1.0 - split;
    const data::PrepareResult result = data::prepare(o, *tokenizer_);
    base::replace_file(sides.stamp_path(), stamp);
    if (!how_.quiet)
      fmt::print(
          stderr, "prepared {}{}: {} tokens to train on{}\n", path,
          result.forms[0] ? fmt::format(" (conversations in {} form)", data::chat_form_name(*result.forms[0]))
                          : "",
          report::format_count(double(result.train.num_tokens)),
          result.validation
              ? fmt::format(", {} to validate", report::format_count(double(result.validation->num_tokens)))
              : "");
    return {sides.train, sides.valid};
  }

 private:
  // What the run was trained on, where that was prepared under this name.
  std::optional<Sides> trained_on(const std::string& name, double split) const {
    const Names names = names_in(*how_.trained_with);
    for (int64_t i = 1;; ++i) {
      Sides sides(folder_, name, i, split > 0);
      if (sides.stamp().empty()) break;
      if (sides.is_named(names)) return sides;
    }
    // Names in a checkpoint of 0.1.0 are as seen from where it was trained.
    const Sides first(folder_, name, 1, split > 0);
    if (!first.stamp().empty() && !fs::exists(how_.trained_with->data.train + ".idx")) return first;
    return {};
  }

  // Where these tokens are, or may be written.
  Sides place_for(const std::string& name, double split, const std::string& stamp) {
    std::optional<Sides> free;
    for (int64_t i = 1;; ++i) {
      Sides sides(folder_, name, i, split > 0);
      const std::string there = sides.stamp();
      if (there == stamp && sides.complete()) return sides;
      if (!free && !sides.is_named(in_use())) free = sides;
      if (there.empty() && free) return *free;
    }
  }

  const Names& in_use() {
    if (!in_use_) in_use_ = how_.in_use ? *how_.in_use : names_in_use(config::resolve(config_));
    return *in_use_;
  }

  // A run goes on with the tokens it has, whatever became of the file they were made from.
  void keep(const std::string& key, const std::string& path, const std::string& was,
            const std::string& now) const {
    const nlohmann::json before = nlohmann::json::parse(was, nullptr, false),
                         after = nlohmann::json::parse(now);
    const bool gone = after["bytes"].is_null();
    std::vector<std::string> lines;
    for (const auto& [what, value] : after.items()) {
      const nlohmann::json old =
          before.is_object() && before.contains(what) ? before[what] : nlohmann::json();
      if (old == value || what == "bytes" || what == "modified_ns") continue;
      if (what == "source")
        lines.push_back(fmt::format(
            "{} was {}, now {}{}", key, old.is_string() ? nearby(old.get<std::string>()) : old.dump(), path,
            gone ? fmt::format(", which is not there (looked for '{}')", whole_name(path)) : ""));
      else if (what == "tokenizer")
        lines.push_back(
            fmt::format("data.tokenizer = \"{}\" is another tokenizer than then", config_.data.tokenizer));
      else if (what == "chat")
        lines.push_back("conversations are written otherwise ([chat], or the tokenizer's template)");
      else
        lines.push_back(fmt::format("data.{} was {}, now {}", what, old.dump(), value.dump()));
    }
    if (before.is_object() && before.contains("chat") && !after.contains("chat"))
      lines.push_back("conversations were written by a template, now they are not ([chat])");
    if (!lines.empty())
      base::fail(
          "this run was trained on tokens prepared otherwise:\n  {}\nUse the former settings, or "
          "--allow-change "
          "to prepare the new ones and read them from their start",
          fmt::join(lines, "\n  "));
    if (!how_.quiet)
      fmt::print(stderr, "note: {} {}; the run goes on with the tokens it prepared then\n", path,
                 gone ? "is not there any more" : "has another size or date than when it was prepared");
  }

  bool is_chat(const std::string& path) const {
    return is_jsonl(path) && config_.chat.template_name != "none";
  }

  // What the prepared files were made from: when any of this changes, they are made again.
  std::string stamp_of(const std::string& path, double split) const {
    struct stat st {};
    const bool there = ::stat(path.c_str(), &st) == 0;
    const config::Config& c = config_;
    const int64_t modified = st.st_mtim.tv_sec * 1000000000LL + st.st_mtim.tv_nsec;
    nlohmann::json stamp = {{"source", fs::absolute(path).lexically_normal().string()},
                            {"bytes", there ? nlohmann::json(int64_t{st.st_size}) : nlohmann::json()},
                            {"modified_ns", there ? nlohmann::json(modified) : nlohmann::json()},
                            {"tokenizer", tokenizer_->tokenizer_hash()},
                            {"end_of_document", tokenizer_->end_of_document()},
                            {"jsonl_key", c.data.jsonl_key},
                            {"separator", c.data.separator},
                            {"valid_split", split}};
    if (is_chat(path)) stamp["chat"] = data::chat_fingerprint(chat_template_of(c.chat), *tokenizer_);
    return stamp.dump();
  }

  const config::Config& config_;
  const PreparedData& how_;
  std::string folder_;
  std::optional<Names> in_use_;
  std::shared_ptr<data::TextTokenizer> tokenizer_;
};

// Conversations are kept whole where nothing else was asked for. The data are prepared.
void choose_packing(config::Config& c) {
  if (c.asked.contains("data.packing") || c.data.packing != "stream" || !c.data.isolate_documents) return;
  std::vector<std::string> prefixes = c.data.sources.empty() ? std::vector{c.data.train} : c.data.sources;
  if (!c.data.valid.empty()) prefixes.push_back(c.data.valid);
  const bool conversations = std::all_of(prefixes.begin(), prefixes.end(), [](const std::string& prefix) {
    const auto info = data::read_dataset_info(prefix);
    return info && !info->chat_template.empty();
  });
  if (conversations) c.data.packing = "whole";
}

}  // namespace

config::Config with_prepared_data(const config::Config& config, const PreparedData& how) {
  config::Config c = with_vocabulary(config);
  if (c.data.train.empty() && c.data.sources.empty())
    base::fail(
        "data.train is not set: give a .txt or .jsonl file, or the prefix of a .bin/.idx pair, or several in "
        "data.sources");
  const config::Config as_named = c;
  Preparer preparer(as_named, how);
  if (is_text("data.train", c.data.train)) {
    const double split = c.data.valid.empty() ? c.data.valid_split : 0;
    const auto [train, valid] = preparer.prepare("data.train", c.data.train, "train", split);
    c.data.train = train;
    if (!valid.empty()) c.data.valid = valid, c.data.valid_split = 0;
  } else if (c.data.valid_split > 0) {
    base::fail(
        "data.valid_split = {} needs text in data.train; '{}' is a prepared dataset: set data.valid to "
        "another one",
        c.data.valid_split, c.data.train);
  }
  for (size_t i = 0; i < c.data.sources.size(); ++i)
    if (is_text("data.sources", c.data.sources[i]))
      c.data.sources[i] =
          preparer.prepare("data.sources", c.data.sources[i], fmt::format("source-{}", i), 0).first;
  if (is_text("data.valid", c.data.valid))
    c.data.valid = preparer.prepare("data.valid", c.data.valid, "valid", 0).first;
  const std::string remark = check_tokenizer(c);
  if (!how.quiet && !remark.empty()) fmt::print(stderr, "note: {}\n", remark);
  choose_packing(c);
  return c;
}

}  // namespace pleat::train
