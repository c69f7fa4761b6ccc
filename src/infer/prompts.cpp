#include "infer/prompts.h"

#include <charconv>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/foreign_text.h"
#include "data/tokenizer/json_fields.h"

namespace pleat::infer {
namespace {

using nlohmann::json;

Prompt prompt_from_json(const std::string& text, const std::string& where) {
  const json line = data::parse_json_line(text, where);
  if (line.is_string()) return {line.get<std::string>(), std::nullopt};
  if (!line.is_object() || line.contains("prompt") == line.contains("tokens"))
    base::fail("{}: needed a string, or an object with \"prompt\" or \"tokens\"", where);
  if (line.contains("prompt")) {
    if (!line["prompt"].is_string())
      base::fail("{}: \"prompt\" is {}, needed a string", where, line["prompt"].type_name());
    return {line["prompt"].get<std::string>(), std::nullopt};
  }
  Prompt out;
  out.text = line["tokens"].dump();
  out.ids.emplace();
  if (!line["tokens"].is_array()) base::fail("{}: \"tokens\" is no list of ids", where);
  for (const json& id : line["tokens"]) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX)
      base::fail("{}: token {} is no id", where, id.dump());
    out.ids->push_back(id.get<int32_t>());
  }
  return out;
}

}  // namespace

std::vector<Prompt> read_prompts(const std::string& path) {
  std::ifstream file;
  if (path != "-") file.open(path, std::ios::binary);
  if (!file) base::fail_with(base::ExitCode::Storage, "cannot open '{}'", path);
  std::istream& in = path == "-" ? std::cin : file;
  const bool is_json = path.ends_with(".jsonl") || path.ends_with(".ndjson");
  std::vector<Prompt> out;
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    if (number == 1) base::refuse_lfs_pointer(line, path);
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    out.push_back(is_json ? prompt_from_json(line, fmt::format("{}:{}", path, number))
                          : Prompt{line, std::nullopt});
  }
  if (in.bad()) base::fail_with(base::ExitCode::Storage, "cannot read '{}'", path);
  if (out.empty()) base::fail("'{}' holds no prompt", path);
  return out;
}

Prompt parse_ids(const std::string& text) {
  Prompt out{text, std::vector<int32_t>{}};
  for (size_t at = 0; at < text.size();) {
    if (text[at] == ' ' || text[at] == ',') {
      ++at;
      continue;
    }
    int32_t id = 0;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), id);
    const size_t next = static_cast<size_t>(end - text.data());
    if (error != std::errc() || id < 0 || (next < text.size() && text[next] != ' ' && text[next] != ','))
      base::fail("prompt '{}' is no list of token ids such as '1, 2, 3'", text);
    out.ids->push_back(id);
    at = next;
  }
  return out;
}

std::vector<std::vector<int32_t>> encode_prompts(const std::vector<Prompt>& prompts,
                                                 const Vocabulary* vocabulary, int64_t vocab_size) {
  std::vector<std::vector<int32_t>> out;
  for (const Prompt& p : prompts) {
    if (!p.ids && !vocabulary)
      base::fail("the model folder holds no tokenizer; give one with --tokenizer, or ids with --ids");
    out.push_back(p.ids ? *p.ids : vocabulary->encode(p.text, true));
    if (out.back().empty()) base::fail("prompt {} is empty; at least one token is needed", out.size());
    for (int32_t t : out.back())
      if (t < 0 || t >= vocab_size)
        base::fail("prompt {}: token {} is outside the model's vocabulary of {}", out.size(), t, vocab_size);
  }
  return out;
}

}  // namespace pleat::infer
