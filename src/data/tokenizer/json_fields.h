// Strict reading of JSON from files others wrote: every error names file and place, unknown keys are refused.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace pleat::data {

using Json = nlohmann::json;

// Throws on broken JSON and on nesting deeper than 64.
Json parse_json(std::string_view text, std::string_view where);
// The same for one line of JSONL; `where` names file and line.
Json parse_json_line(std::string_view line, const std::string& where);

// Throws unless `object` is an object with these keys only.
void only_keys(const Json& object, std::initializer_list<std::string_view> keys, const std::string& where);

const Json& need(const Json& object, const char* key, const std::string& where);
// Null where the key is missing or holds null.
const Json* find(const Json& object, const char* key);

std::string string_at(const Json& object, const char* key, const std::string& where);
int64_t integer_at(const Json& object, const char* key, const std::string& where);
bool bool_at(const Json& object, const char* key, const std::string& where);
bool bool_at(const Json& object, const char* key, bool otherwise, const std::string& where);
// The "type" of a component.
std::string type_of(const Json& object, const std::string& where);

// A string that is exactly one character.
uint32_t character_at(const Json& object, const char* key, const std::string& where);

}  // namespace pleat::data
