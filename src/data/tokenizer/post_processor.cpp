#include "data/tokenizer/post_processor.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {
namespace {

void append_ids(const Json& special_tokens, const std::string& name, std::vector<int32_t>& out,
                const std::string& where) {
  const Json& token = need(special_tokens, name.c_str(), where + ".special_tokens");
  const Json& ids = need(token, "ids", where + ".special_tokens");
  if (!ids.is_array()) base::fail("{}.special_tokens: the ids of \"{}\" are no array", where, shown(name));
  for (const Json& id : ids) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX)
      base::fail("{}.special_tokens: an id of \"{}\" is no id", where, shown(name));
    out.push_back(id.get<int32_t>());
  }
}

SpecialFrame read_template(const Json& json, const std::string& where) {
  SpecialFrame frame;
  const Json& pieces = need(json, "single", where);
  if (!pieces.is_array()) base::fail("{}.single: an array is needed", where);
  bool seen_text = false;
  for (const Json& piece : pieces) {
    only_keys(piece, {"SpecialToken", "Sequence"}, where + ".single");
    if (piece.contains("Sequence")) {
      if (seen_text) base::fail("{}.single: the text appears twice", where);
      seen_text = true;
    } else if (piece.contains("SpecialToken")) {
      const std::string name = string_at(piece["SpecialToken"], "id", where + ".single");
      append_ids(need(json, "special_tokens", where), name, seen_text ? frame.after : frame.before, where);
    }
  }
  if (!seen_text) base::fail("{}.single: the text does not appear", where);
  return frame;
}

// ["[CLS]", 101] under `key`.
int32_t named_id(const Json& json, const char* key, const std::string& where) {
  const Json& pair = need(json, key, where);
  if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_number_integer() ||
      pair[1].get<int64_t>() < 0 || pair[1].get<int64_t>() > INT32_MAX)
    base::fail("{}.{}: a token and its id are needed", where, key);
  return pair[1].get<int32_t>();
}

}  // namespace

SpecialFrame read_post_processor(const Json& json, const std::string& where) {
  if (json.is_null()) return {};
  const std::string type = type_of(json, where);
  if (type == "ByteLevel") {
    // Concerns positions in the text only, which are not reported.
    only_keys(json, {"type", "add_prefix_space", "trim_offsets", "use_regex"}, where);
    return {};
  }
  if (type == "TemplateProcessing") {
    only_keys(json, {"type", "single", "pair", "special_tokens"}, where);
    return read_template(json, where);
  }
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    // The last two concern positions in the text only.
    only_keys(json, {"type", "sep", "cls", "trim_offsets", "add_prefix_space"}, where);
    return {.before = {named_id(json, "cls", where)}, .after = {named_id(json, "sep", where)}};
  }
  if (type == "Sequence") {
    only_keys(json, {"type", "processors"}, where);
    const Json& list = need(json, "processors", where);
    if (!list.is_array()) base::fail("{}.processors: an array is needed", where);
    SpecialFrame frame;
    for (size_t i = 0; i < list.size(); ++i) {
      const SpecialFrame outer = read_post_processor(list[i], fmt::format("{}.processors[{}]", where, i));
      frame.before.insert(frame.before.begin(), outer.before.begin(), outer.before.end());
      frame.after.insert(frame.after.end(), outer.after.begin(), outer.after.end());
    }
    return frame;
  }
  base::fail(
      "{}: post_processor \"{}\" is not supported; ByteLevel, TemplateProcessing, BertProcessing, "
      "RobertaProcessing and Sequence are",
      where, shown(type));
}

}  // namespace pleat::data
