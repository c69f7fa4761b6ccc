// Text named by a config becomes .bin/.idx in the run folder, once.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

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

// False for what is taken for the prefix of a dataset; throws on files that are neither.
bool is_text(const std::string& path) {
  if (base::names_text(path)) return true;
  std::error_code ignored;
  if (path.empty() || fs::exists(path + ".idx", ignored) || !fs::is_regular_file(path, ignored)) return false;
  data::open_text_bytes(path);  // says what a file of another kind is
  base::fail(
      "'{}' is a file, but not called .txt or .jsonl (.gz or .zst may follow); rename it, or name a "
      ".bin/.idx "
      "pair without its ending",
      path);
}

class Preparer {
 public:
  Preparer(const config::Config& config, const PreparedData& how)
      : config_(config), quiet_(how.quiet), keep_(how.keep), folder_(config.log.run_dir + "/data") {}

  // Prepares `path` under `name` in the run's folder unless it is there already; returns the prefixes of both
  // sides, the second one empty without a split.
  std::pair<std::string, std::string> prepare(const std::string& path, const std::string& name,
                                              double split) {
    if (!tokenizer_) tokenizer_ = open_run_tokenizer(config_);
    fs::create_directories(folder_);
    const std::string prefix = folder_ + "/" + name;
    const std::string stamp = stamp_of(path, split), stamp_path = prefix + ".source.json";
    const std::string train = split > 0 ? prefix + "-train" : prefix,
                      valid = split > 0 ? prefix + "-validation" : "";
    std::stringstream old;
    if (std::ifstream in(stamp_path); in) old << in.rdbuf();
    if (old.str() == stamp && fs::exists(train + ".idx") && (valid.empty() || fs::exists(valid + ".idx")))
      return {train, valid};
    if (keep_ && !old.str().empty()) {
      keep(path, old.str(), stamp);
      return {train, valid};
    }
    if (!fs::exists(path)) base::fail("data file '{}' cannot be opened", path);
    fs::remove(stamp_path);  // a preparation cut short must not leave new files beside an old stamp
    data::PrepareOptions o;
    o.inputs = {path};
    o.json_key = config_.data.jsonl_key;
    if (!is_jsonl(path)) o.separator = config_.data.separator;
    if (is_chat(path)) o.chat = chat_template_of(config_.chat);
    o.tokenizer_path = data::absolute_tokenizer(config_.data.tokenizer);
    o.num_threads = config_.device.threads;
    o.output_prefix = prefix;
    if (split > 0) o.split = 1.0 - split;
    const data::PrepareResult result = data::prepare(o, *tokenizer_);
    std::ofstream(stamp_path) << stamp;
    if (!quiet_)
      fmt::print(
          stderr, "prepared {}{}: {} tokens to train on{}\n", path,
          result.forms[0] ? fmt::format(" (conversations in {} form)", data::chat_form_name(*result.forms[0]))
                          : "",
          report::format_count(double(result.train.num_tokens)),
          result.validation
              ? fmt::format(", {} to validate", report::format_count(double(result.validation->num_tokens)))
              : "");
    return {train, valid};
  }

 private:
  // A run goes on with the tokens it has, whatever became of the file they were made from.
  void keep(const std::string& path, const std::string& was, const std::string& now) const {
    nlohmann::json before = nlohmann::json::parse(was, nullptr, false), after = nlohmann::json::parse(now);
    const bool gone = after["bytes"].is_null();
    for (const char* of_file : {"bytes", "modified_ns"}) {
      if (before.is_object()) before.erase(of_file);
      after.erase(of_file);
    }
    if (before != after)
      base::fail(
          "'{}' was prepared for this run with other settings of [data] or [chat], or another tokenizer: the "
          "tokens would not be the same. Use the former settings, or --allow-change to prepare it again and "
          "read it from its start",
          path);
    if (!quiet_)
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
  bool quiet_, keep_;
  std::string folder_;
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
  if (is_text(c.data.train)) {
    const double split = c.data.valid.empty() ? c.data.valid_split : 0;
    const auto [train, valid] = preparer.prepare(c.data.train, "train", split);
    c.data.train = train;
    if (!valid.empty()) c.data.valid = valid, c.data.valid_split = 0;
  } else if (c.data.valid_split > 0) {
    base::fail(
        "data.valid_split = {} needs text in data.train; '{}' is a prepared dataset: set data.valid to "
        "another one",
        c.data.valid_split, c.data.train);
  }
  for (size_t i = 0; i < c.data.sources.size(); ++i)
    if (is_text(c.data.sources[i]))
      c.data.sources[i] = preparer.prepare(c.data.sources[i], fmt::format("source-{}", i), 0).first;
  if (is_text(c.data.valid)) c.data.valid = preparer.prepare(c.data.valid, "valid", 0).first;
  const std::string remark = check_tokenizer(c);
  if (!how.quiet && !remark.empty()) fmt::print(stderr, "note: {}\n", remark);
  choose_packing(c);
  return c;
}

}  // namespace pleat::train
