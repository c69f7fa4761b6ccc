#include "data/tokenizer/json_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/foreign_text.h"
#include "data/json_error.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {
namespace {

constexpr int kMaxDepth = 64;

}  // namespace

Json parse_json(std::string_view text, std::string_view where) {
  base::refuse_deep_json(text, kMaxDepth, where);
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::exception& error) {
    base::fail("{}: broken JSON: {}", where, base::json_fault(error.what()));
  }
}

Json parse_json_line(std::string_view line, const std::string& where) {
  base::refuse_deep_json(line, kMaxDepth, where);
  try {
    return Json::parse(line.begin(), line.end());
  } catch (const Json::parse_error& error) {
    fail_broken_json(where, error.byte, error.what());
  } catch (const Json::exception& error) {
    base::fail("{}: broken JSON: {}", where, base::json_fault(error.what()));
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
