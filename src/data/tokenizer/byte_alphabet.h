// GPT-2's alphabet: every byte as one printable character, so that byte strings can be spelled in JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pleat::data {

uint32_t byte_character(unsigned char byte);
// -1 when the character stands for no byte.
int byte_of_character(uint32_t code_point);

// Every byte of `bytes` as its character, in UTF-8.
void append_byte_characters(std::string& out, std::string_view bytes);
// False, with `out` unchanged, when a character of `text` (valid UTF-8) stands for no byte.
bool append_bytes_of_characters(std::string& out, std::string_view text);

}  // namespace pleat::data
