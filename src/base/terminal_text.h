// Text from elsewhere, made safe for a terminal. Control characters in a file name, a model's config.json or
// a generated text can move the cursor, recolour the window or forge lines; here they become visible escapes.
//
// What stays: printable characters of valid UTF-8, line ends and tabs. What is escaped: the other C0 controls
// and DEL (\x1b), C1 controls in UTF-8 (\u009b), bytes that are no UTF-8 (\xff), line and paragraph
// separators, and the marks that reorder text (\u202e).
#pragma once

#include <string>
#include <string_view>

namespace pleat::base {

std::string terminal_text(std::string_view text);

// Whether a text is one line of which nothing has to be escaped: a name that can be printed as it is.
bool is_plain_line(std::string_view text);

// The same for a text that comes in pieces: a character cut in two waits for its other half.
class TerminalFilter {
 public:
  std::string push(std::string_view piece);
  // What still waits; it is no character any more.
  std::string finish();

 private:
  std::string pending_;
};

}  // namespace pleat::base
