// The "post_processor" of a tokenizer.json, as far as it concerns one text: the ids put before and after it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer/json_fields.h"

namespace pleat::data {

struct SpecialFrame {
  std::vector<int32_t> before = {}, after = {};
};

// Empty for JSON null. Throws, naming the part, for what is not supported.
SpecialFrame read_post_processor(const Json& json, const std::string& where);

}  // namespace pleat::data
