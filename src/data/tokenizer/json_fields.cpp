#include "data/tokenizer/json_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {
namespace {

constexpr int kMaxDepth = 64;

// Before the parser builds anything.
void check_depth(std::string_view text, std::string_view where) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) base::fail("{}: JSON nests deeper than {} levels", where, kMaxDepth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

}  // namespace

Json parse_json(std::string_view text, std::string_view where) {
  check_depth(text, where);
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::exception& error) {
    std::string_view reason = error.what();
    if (const size_t close = reason.find("] "); close != std::string_view::npos)
      reason.remove_prefix(close + 2);
    base::fail("{}: broken JSON: {}", where, shown(reason, 160));
  }
}

void only_keys(const Json& object, std::initializer_list<std::string_view> keys, const std::string& where) {
  if (!object.is_object()) base::fail("{}: {} stands where an object is needed", where, object.type_name());
  for (const auto& item : object.items())
    if (std::find(keys.begin(), keys.end(), item.key()) == keys.end())
      base::fail("{}: key \"{}\" is not supported", where, shown(item.key()));
}

const Json* find(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto at = object.find(key);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

const Json& need(const Json& object, const char* key, const std::string& where) {
  if (!object.is_object()) base::fail("{}: {} stands where an object is needed", where, object.type_name());
  const auto at = object.find(key);
  if (at == object.end()) base::fail("{}: key \"{}\" is missing", where, key);
  return *at;
}

std::string string_at(const Json& object, const char* key, const std::string& where) {
  const Json& value = need(object, key, where);
  if (!value.is_string())
    base::fail("{}: \"{}\" holds {}; a string is needed", where, key, value.type_name());
  return value.get<std::string>();
}

int64_t integer_at(const Json& object, const char* key, const std::string& where) {
  const Json& value = need(object, key, where);
  if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX))
    base::fail("{}: \"{}\" holds {}; an integer is needed", where, key, shown(value.dump(-1, ' ', true)));
  return value.get<int64_t>();
}

bool bool_at(const Json& object, const char* key, const std::string& where) {
  const Json& value = need(object, key, where);
  if (!value.is_boolean())
    base::fail("{}: \"{}\" holds {}; true or false is needed", where, key, value.type_name());
  return value.get<bool>();
}

bool bool_at(const Json& object, const char* key, bool otherwise, const std::string& where) {
  return find(object, key) == nullptr ? otherwise : bool_at(object, key, where);
}

std::string type_of(const Json& object, const std::string& where) { return string_at(object, "type", where); }

uint32_t character_at(const Json& object, const char* key, const std::string& where) {
  const std::string text = string_at(object, key, where);
  size_t at = 0;
  const uint32_t c = text.empty() ? 0 : next_code_point(text, at);
  if (text.empty() || at != text.size())
    base::fail("{}: \"{}\" holds \"{}\"; exactly one character is needed", where, key, shown(text));
  return c;
}

}  // namespace pleat::data
