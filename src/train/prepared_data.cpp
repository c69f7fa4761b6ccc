// Text named by a config becomes .bin/.idx in the run folder, once.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "data/byte_tokenizer.h"
#include "data/prepare.h"
#include "report/format.h"
#include "train/loop.h"

namespace pleat::train {
namespace {

namespace fs = std::filesystem;

bool is_text(const std::string& path) {
  return path.ends_with(".txt") || path.ends_with(".jsonl") || path.ends_with(".ndjson");
}

// What the prepared files were made from: when any of this changes, they are made again.
std::string stamp_of(const std::string& path, const config::Config& c, double split) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) base::fail("data file '{}' cannot be opened", path);
  return nlohmann::json{{"source", fs::absolute(path).string()},
                        {"bytes", st.st_size},
                        {"modified_ns", st.st_mtim.tv_sec * 1000000000LL + st.st_mtim.tv_nsec},
                        {"tokenizer", c.data.tokenizer},
                        {"jsonl_key", c.data.jsonl_key},
                        {"separator", c.data.separator},
                        {"valid_split", split}}
      .dump();
}

// Prepares `path` under `prefix` unless it is there already; returns the prefixes of both sides.
std::pair<std::string, std::string> prepare_once(const std::string& path, const std::string& prefix,
                                                 const config::Config& c, double split, bool quiet) {
  const std::string stamp = stamp_of(path, c, split), stamp_path = prefix + ".source.json";
  const std::string train = split > 0 ? prefix + "-train" : prefix,
                    valid = split > 0 ? prefix + "-validation" : "";
  std::stringstream old;
  if (std::ifstream in(stamp_path); in) old << in.rdbuf();
  if (old.str() == stamp && fs::exists(train + ".idx") && (valid.empty() || fs::exists(valid + ".idx")))
    return {train, valid};
  fs::remove(stamp_path);  // a preparation cut short must not leave new files beside an old stamp
  const data::ByteTokenizer tokenizer;
  data::PrepareOptions o;
  o.inputs = {path};
  o.json_key = c.data.jsonl_key;
  if (path.ends_with(".txt")) o.separator = c.data.separator;
  o.output_prefix = prefix;
  if (split > 0) o.split = 1.0 - split;
  const data::PrepareResult result = data::prepare(o, tokenizer);
  std::ofstream(stamp_path) << stamp;
  if (!quiet)
    fmt::print(stderr, "prepared {}: {} tokens to train on{}\n", path,
               report::format_count(double(result.train.num_tokens)),
               result.validation ? fmt::format(", {} to validate",
                                               report::format_count(double(result.validation->num_tokens)))
                                 : "");
  return {train, valid};
}

}  // namespace

config::Config with_prepared_data(const config::Config& config, bool quiet) {
  config::Config c = config;
  if (c.data.train.empty())
    base::fail("data.train is not set: give a .txt or .jsonl file, or the prefix of a .bin/.idx pair");
  const std::string folder = c.log.run_dir + "/data";
  if (is_text(c.data.train) || is_text(c.data.valid)) fs::create_directories(folder);
  if (is_text(c.data.train)) {
    const double split = c.data.valid.empty() ? c.data.valid_split : 0;
    const auto [train, valid] = prepare_once(c.data.train, folder + "/train", c, split, quiet);
    c.data.train = train;
    if (!valid.empty()) c.data.valid = valid, c.data.valid_split = 0;
  } else if (c.data.valid_split > 0) {
    base::fail(
        "data.valid_split = {} needs text in data.train; '{}' is a prepared dataset: set data.valid to "
        "another one",
        c.data.valid_split, c.data.train);
  }
  if (is_text(c.data.valid)) c.data.valid = prepare_once(c.data.valid, folder + "/valid", c, 0, quiet).first;
  return c;
}

}  // namespace pleat::train
