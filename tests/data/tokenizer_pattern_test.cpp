#include <gtest/gtest.h>

#include "data/data_support.h"
#include "data/tokenizer/regex.h"

namespace pleat::data {
namespace {

std::vector<std::string> matches(const std::string& pattern, const std::string& text,
                                 PatternDialect dialect = PatternDialect::Oniguruma) {
  const Regex regex(pattern, dialect, "test");
  Regex::Workspace workspace;
  std::vector<std::string> found;
  for_each_part(regex, text, workspace, [&](size_t begin, size_t end, bool is_match) {
    if (is_match) found.push_back(text.substr(begin, end - begin));
  });
  return found;
}

using Strings = std::vector<std::string>;

TEST(TokenizerPattern, MeansWhatItMeansElsewhere) {
  EXPECT_EQ(matches(R"(\s+)", "a \xe1\xa0\x8e\xc2\x85 b"), (Strings{" ", "\xc2\x85 "}));  // not U+180E
  EXPECT_EQ(matches(R"([\S]+)", "a \xe1\xa0\x8e b"), (Strings{"a", "\xe1\xa0\x8e", "b"}));
  EXPECT_EQ(matches(R"(\p{L}+)", "x\xf0\xb1\x8d\x90-"),
            (Strings{"x\xf0\xb1\x8d\x90"}));                                           // U+31350, Unicode 15
  EXPECT_EQ(matches(R"(\p{So})", "\xf0\x9f\xa9\xb7"), (Strings{"\xf0\x9f\xa9\xb7"}));  // U+1FA77, Unicode 15
  EXPECT_EQ(matches(R"(\w+)", "a\xc2\xb2_1 b"), (Strings{"a\xc2\xb2_1", "b"}));
  EXPECT_EQ(matches(R"(\w+)", "a\xc2\xb2_1", PatternDialect::Rust), (Strings{"a", "_1"}));
  EXPECT_EQ(matches(R"(b$)", "b\nb\n"), (Strings{"b", "b"}));
  EXPECT_EQ(matches(R"(b$)", "b\nb", PatternDialect::Rust), (Strings{"b"}));
  EXPECT_EQ(matches(R"(b$)", "b\n", PatternDialect::Rust), (Strings{}));
  EXPECT_EQ(matches(R"(\p{Han}+)", "\xe3\x80\x82\xe4\xb8\xad"),
            (Strings{"\xe4\xb8\xad"}));  // no script extensions
  EXPECT_EQ(matches(R"((?i:'s|'ll))", "'S'Ll'\xc5\xbf"), (Strings{"'S", "'Ll", "'\xc5\xbf"}));
  EXPECT_EQ(matches(R"(\u4e2d|\x41|[\x{42}])", "A B \xe4\xb8\xad"), (Strings{"A", "B", "\xe4\xb8\xad"}));
  EXPECT_EQ(matches("x*", "axb"), (Strings{"", "x", ""}));
}

TEST(TokenizerPattern, RefusesByName) {
  const auto refused = [](const std::string& pattern) {
    return error_of([&] { Regex(pattern, PatternDialect::Oniguruma, "test"); });
  };
  EXPECT_NE(refused(R"(a\bb)").find(R"(escape \b at byte 1 is not supported)"), std::string::npos);
  EXPECT_NE(refused(R"((?x) a)").find("group (?x)"), std::string::npos);
  EXPECT_NE(refused(R"([a&&[b]])").find("&& inside a class"), std::string::npos);
  EXPECT_NE(refused(R"([[:alpha:]])").find("a class inside a class"), std::string::npos);
  EXPECT_NE(refused(R"(\p{Emoji})").find(R"(property \p{Emoji})"), std::string::npos);
  EXPECT_NE(refused(R"([^\P{L}])").find("a negated set inside a class"), std::string::npos);
  EXPECT_NE(refused(R"(a{,3})").find("repeat {,3}"), std::string::npos);
  EXPECT_NE(refused(R"(a{1,3}+)").find("+ after a counted repeat"), std::string::npos);
  EXPECT_NE(refused("(a").find("does not compile"), std::string::npos);
  EXPECT_NE(refused("[a").find("a class that is not closed"), std::string::npos);
  EXPECT_NE(refused(R"((*UTF)a)").find("verb (*"), std::string::npos);
  EXPECT_NE(refused(std::string(70000, 'a')).find("at most"), std::string::npos);
}

TEST(TokenizerPattern, GivesUpInsteadOfRunningForever) {
  EXPECT_NE(error_of([] {
              matches("(?:a|aa|a)+(?:a|aa)+b", std::string(60, 'a') + "cb");
            }).find("gives up on this text"),
            std::string::npos);
}

TEST(TokenizerPattern, LongGroupsNeedNoStack) {
  EXPECT_EQ(matches("(?:ab|c)+", std::string(2'000'000, 'c')).size(), 1u);
}

}  // namespace
}  // namespace pleat::data
