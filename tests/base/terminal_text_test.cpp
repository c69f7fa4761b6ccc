#include "base/terminal_text.h"

#include <gtest/gtest.h>

namespace pleat::base {
namespace {

TEST(TerminalText, KeepsWhatCanBeRead) {
  const std::string text = "plain, tab\t, line\n, \xc3\xa9, \xe2\x82\xac, \xf0\x9f\x98\x80, \xc2\xa0.";
  EXPECT_EQ(terminal_text(text), text);
}

TEST(TerminalText, EscapesWhatSteersATerminal) {
  EXPECT_EQ(terminal_text("\x1b[31m\a\r\x7f"), "\\x1b[31m\\x07\\x0d\\x7f");
  EXPECT_EQ(terminal_text(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(terminal_text("\xc2\x9b"
                          "2J"),
            "\\u009b2J");  // CSI as one character
  EXPECT_EQ(terminal_text("\x9b"
                          "2J"),
            "\\x9b2J");  // and as one byte
  EXPECT_EQ(terminal_text("\xe2\x80\xae"
                          "abc"),
            "\\u202eabc");  // right to left from here
  EXPECT_EQ(terminal_text("\xe2\x80\xa8"), "\\u2028");
}

TEST(TerminalText, EscapesBytesThatAreNoText) {
  EXPECT_EQ(terminal_text("\xff\xc0\x80"), "\\xff\\xc0\\x80");
  EXPECT_EQ(terminal_text("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // half of a pair
  EXPECT_EQ(terminal_text("\xe2\x82"), "\\xe2\\x82");           // cut short
  EXPECT_EQ(terminal_text("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
}

TEST(TerminalText, ACharacterInTwoPiecesIsOne) {
  TerminalFilter filter;
  EXPECT_EQ(filter.push("a\xe2\x82"), "a");
  EXPECT_EQ(filter.push("\xac"
                        "b\xc2"),
            "\xe2\x82\xac"
            "b");
  EXPECT_EQ(filter.push("\x9b"), "\\u009b");
  EXPECT_EQ(filter.push("\xf0"), "");
  EXPECT_EQ(filter.finish(), "\\xf0");
  EXPECT_EQ(filter.finish(), "");
}

}  // namespace
}  // namespace pleat::base
