// What Python's str does with characters: white space, lines, letter case, repr. Text is valid UTF-8.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace pleat::data::jinja {

bool is_python_space(uint32_t code_point);
// The number of characters.
size_t length_of(std::string_view text);

// Where characters start. Takes little memory: texts may be long.
class CharacterPlaces {
 public:
  explicit CharacterPlaces(std::string_view text);
  // The number of characters.
  size_t count() const { return count_; }
  // The byte the character starts at; of count(): the end of the text.
  size_t operator[](size_t character) const;

 private:
  std::string_view text_;
  size_t count_ = 0;
  std::vector<size_t> some_;  // of every 64th; none where characters are bytes
};

// As std::string_view::find, in time that grows with the two lengths and not with their product.
size_t find_text(std::string_view text, std::string_view wanted, size_t from = 0);
// Finds from the end.
class BackwardSearch {
 public:
  BackwardSearch(std::string_view text, std::string_view wanted);
  // The last place where it stands before `end`, all of it.
  size_t before(size_t end) const;

 private:
  std::string text_, wanted_;  // back to front
};

// The end of the white space that starts at `at`, and the start of that which ends at `end`.
size_t skip_space(std::string_view text, size_t at);
size_t skip_space_back(std::string_view text, size_t end);

// visit(begin, end) for each line as str.splitlines() cuts them, without or with their ends.
void for_each_line(std::string_view text, bool keep_ends, const std::function<void(size_t, size_t)>& visit);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
// One character alone in upper or lower case, which may be several.
void append_cased(std::string& out, uint32_t code_point, bool to_upper);
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
