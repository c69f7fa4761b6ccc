// The sets of characters that the steps of a tokenizer.json ask for without naming a pattern.
//
// The libraries whose ids must be met read them from tables of different Unicode versions; each set here is
// the one of that version.
#pragma once

#include <cstdint>

namespace pleat::data {

// General category N of Unicode 17.
bool is_number(uint32_t code_point);
// General category P of Unicode 8, and the ASCII characters that are neither letter, digit, space nor
// control.
bool is_punctuation(uint32_t code_point);
// General category M of Unicode 9.
bool is_combining_mark(uint32_t code_point);

// The lower case of one character, Unicode 17; U+0130, whose lower case is two characters, stays as it is.
uint32_t to_lower_case(uint32_t code_point);

}  // namespace pleat::data
