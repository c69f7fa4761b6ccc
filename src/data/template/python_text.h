// What Python's str does with characters: white space, lines, letter case, repr. Text is valid UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pleat::data::jinja {

bool is_python_space(uint32_t code_point);
// The number of characters.
size_t length_of(std::string_view text);
// Where each character starts, and the end of the text.
std::vector<size_t> character_starts(std::string_view text);

// The end of the white space that starts at `at`, and the start of that which ends at `end`.
size_t skip_space(std::string_view text, size_t at);
size_t skip_space_back(std::string_view text, size_t end);

// [begin, end) of each line as str.splitlines() cuts them, without or with their ends.
std::vector<std::pair<size_t, size_t>> line_ranges(std::string_view text, bool keep_ends);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string swap_case(std::string_view text);
// First character in title case, all others in lower case.
std::string capitalize(std::string_view text);
// str.title(): every first letter after something that is none.
std::string title(std::string_view text);

enum class CharacterClass { Digit, Alpha, Alnum, Space, Upper, Lower };
// str.isdigit() and the like: some character, and all of them of this class.
bool all_of(std::string_view text, CharacterClass wanted);

// The body of repr(text) between `quote` and `quote`.
std::string repr_body(std::string_view text, char quote);
// ' unless the text holds that and no ".
char repr_quote(std::string_view text);
std::string repr(double value);

}  // namespace pleat::data::jinja
