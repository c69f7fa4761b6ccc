#include "data/tokenizer/kimi_files.h"

#include <charconv>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/tokenizer/json_fields.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {
namespace {

constexpr int64_t kNumReserved = 256;

int64_t token_id(const std::string& text, const std::string& where) {
  int64_t id = -1;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || stop != text.data() + text.size() || id < 0 || id > INT32_MAX)
    base::fail("{}: \"{}\" is no id", where, shown(text));
  return id;
}

}  // namespace

bool is_kimi_settings(std::string_view settings, const std::string& path) {
  const Json json = parse_json(settings, path);
  const Json* name = find(json, "tokenizer_class");
  return name != nullptr && name->is_string() && name->get<std::string>() == "TikTokenTokenizer";
}

RankFileFamily kimi_family(std::string_view settings, const std::string& path, int64_t num_ranks) {
  const Json json = parse_json(settings, path);
  const std::string where = path + ": added_tokens_decoder";
  const Json& added = need(json, "added_tokens_decoder", path);
  if (!added.is_object()) base::fail("{}: {}; an object is needed", where, added.type_name());
  std::map<int64_t, std::string> names;
  for (int64_t id = num_ranks; id < num_ranks + kNumReserved; ++id)
    names[id] = fmt::format("<|reserved_token_{}|>", id);
  for (const auto& item : added.items())
    names[token_id(item.key(), where)] = string_at(item.value(), "content", where);

  RankFileFamily family = rank_file_family("kimi", num_ranks);
  for (auto& [id, name] : names)
    family.special_tokens.emplace_back(std::move(name), static_cast<int32_t>(id));
  if (const Json* end = find(json, "eos_token"))
    family.end_of_document =
        end->is_string() ? end->get<std::string>() : string_at(*end, "content", path + ": eos_token");
  return family;
}

}  // namespace pleat::data
