// Expected strings are what Python's bytes.decode("utf-8", errors="replace") gives.
#include "data/tokenizer/utf8.h"

#include <gtest/gtest.h>

namespace pleat::data {
namespace {

const std::string kBad = "\xef\xbf\xbd";

TEST(TokenizerUtf8, KeepsValidText) {
  const std::string text = "a\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80\xf4\x8f\xbf\xbf\xed\x9f\xbf\xee\x80\x80";
  EXPECT_TRUE(is_valid_utf8(text));
  EXPECT_EQ(replace_broken_utf8(text), text);
  std::string storage;
  EXPECT_EQ(as_valid_utf8(text, storage).data(), text.data());
}

TEST(TokenizerUtf8, ReplacesMaximalSubparts) {
  EXPECT_EQ(replace_broken_utf8("\x80"), kBad);
  EXPECT_EQ(replace_broken_utf8("\xc0\xaf"), kBad + kBad);
  EXPECT_EQ(replace_broken_utf8("\xe0\x80\xaf"), kBad + kBad + kBad);
  EXPECT_EQ(replace_broken_utf8("\xed\xa0\x80"), kBad + kBad + kBad);
  EXPECT_EQ(replace_broken_utf8("\xf4\x90\x80\x80"), kBad + kBad + kBad + kBad);
  EXPECT_EQ(replace_broken_utf8("\xe2\x82"), kBad);
  EXPECT_EQ(replace_broken_utf8("\xe2\x82x"), kBad + "x");
  EXPECT_EQ(replace_broken_utf8("\xf0\x9f\x98\xf0\x9f\x98\x80"), kBad + "\xf0\x9f\x98\x80");
  EXPECT_EQ(replace_broken_utf8("12345678\xff"
                                "12345678\xc3"),
            "12345678" + kBad + "12345678" + kBad);
  EXPECT_EQ(replace_broken_utf8("\xf1\x80\x80\xe1\x80\xc2"), kBad + kBad + kBad);
}

TEST(TokenizerUtf8, WritesWhatItReads) {
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string text;
    append_code_point(text, c);
    size_t at = 0;
    ASSERT_TRUE(is_valid_utf8(text)) << c;
    ASSERT_EQ(next_code_point(text, at), c);
    ASSERT_EQ(at, text.size());
    ASSERT_EQ(previous_character(text, at), 0u);
  }
}

}  // namespace
}  // namespace pleat::data
