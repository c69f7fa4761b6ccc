// What the JSON parser says about a broken line, short and printable: it quotes the input, which may be long
// and no UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace pleat::data {

std::string printable_json(std::string_view text, size_t max_shown = 160);

// `where` names file and line, `position` the byte in it, from 1. `reason` is the parser's own text; the place it
// names is left out.
[[noreturn]] void fail_broken_json(std::string_view where, size_t position, std::string_view reason);

}  // namespace pleat::data
