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

// The forms below match as Oniguruma and Rust's regex do; all but the last were refused once.
TEST(TokenizerPattern, ClassesIntersectAndNest) {
  const std::string text = "Ab\xe4\xb8\xad\xc3\xa9(1";  // A b U+4E2D e-acute ( 1
  EXPECT_EQ(matches(R"([\p{L}&&[^\p{Han}]]+)", text), (Strings{"Ab", "\xc3\xa9"}));
  EXPECT_EQ(matches(R"([\p{L}&&[^\p{Han}]]+)", text, PatternDialect::Rust), (Strings{"Ab", "\xc3\xa9"}));
  EXPECT_EQ(matches(R"([^\p{L}&&[^\p{Han}]]+)", text), (Strings{"\xe4\xb8\xad", "(1"}));
  EXPECT_EQ(matches(R"([\p{L}&&[^A]&&\p{Latin}])", text), (Strings{"b", "\xc3\xa9"}));
  EXPECT_EQ(matches(R"([^(\s|[b-z])]+)", text), (Strings{"A", "\xe4\xb8\xad\xc3\xa9", "1"}));
  EXPECT_EQ(matches(R"([^\P{L}]+)", text), (Strings{"Ab\xe4\xb8\xad\xc3\xa9"}));
  EXPECT_EQ(matches(R"([\W1]+)", text), (Strings{"(1"}));
  EXPECT_EQ(matches(R"([\w]+)", "a\xc2\xb2"), (Strings{"a"}));  // unlike \w outside a class
  EXPECT_EQ(matches(R"([+--a])", "+,-.a"), (Strings{"+", ",", "-", "a"}));
  EXPECT_EQ(matches(R"(\p{Mn})", "\xf0\x91\x9c\x9e\xcc\x81"), (Strings{"\xcc\x81"}));  // U+1171E was one
}

TEST(TokenizerPattern, GroupsAndRepeatsOfEachDialect) {
  EXPECT_EQ(matches(R"(a(?i)b|c)", "ab aB ac aC c"), (Strings{"ab", "aB", "ac", "aC"}));
  EXPECT_EQ(matches(R"(a(?i)b|c)", "ab aB C", PatternDialect::Rust), (Strings{"ab", "aB", "C"}));
  EXPECT_EQ(matches(R"((?i)x(?-i)y)", "xy Xy XY"), (Strings{"xy", "Xy"}));
  EXPECT_EQ(matches(R"((?<name>a)+b)", "aab"), (Strings{"aab"}));
  EXPECT_EQ(matches(R"((?P<name>a)+b)", "aab", PatternDialect::Rust), (Strings{"aab"}));
  EXPECT_EQ(matches(R"(\d{1,3}+)", "12345"), (Strings{"12345"}));
  EXPECT_EQ(matches(R"(\d{1,3}+)", "12345", PatternDialect::Rust), (Strings{"123", "45"}));
  EXPECT_EQ(matches(R"((?:ab){2}?c)", "ababcc"), (Strings{"ababc", "c"}));
  EXPECT_EQ(matches(R"(xa{,2})", "xaaa"), (Strings{"xaa"}));
  EXPECT_EQ(matches(R"(\d{1,3}(?=(?:\d{3})*\b))", "1234567 x"), (Strings{"1", "234", "567"}));
  EXPECT_EQ(matches(R"(a\B)", "ab a"), (Strings{"a"}));
}

TEST(TokenizerPattern, RefusesByName) {
  const auto refused = [](const std::string& pattern) {
    return refusal([&] { Regex(pattern, PatternDialect::Oniguruma, "test"); });
  };
  EXPECT_NE(refused(R"(a\Gb)").find(R"(escape \G at byte 1 is not supported)"), std::string::npos);
  EXPECT_NE(refused(R"((?x) a)").find("group (?x)"), std::string::npos);
  EXPECT_NE(refused(R"([a&&])").find("&& with nothing behind it"), std::string::npos);
  EXPECT_NE(refused(R"([&&a])").find("&& with nothing before it"), std::string::npos);
  EXPECT_NE(refused(R"([[:alpha:]])").find("a named class [:"), std::string::npos);
  EXPECT_NE(refused(R"((?i:[a&&[b]]))").find("where case is ignored"), std::string::npos);
  EXPECT_NE(refused(R"([\w-z])").find("- behind a set"), std::string::npos);
  EXPECT_NE(refused(R"([z-a])").find("a range that runs backwards"), std::string::npos);
  EXPECT_NE(refused(R"(\xe9)").find("code point e9"), std::string::npos);
  EXPECT_NE(refused(std::string(60, '[') + "a" + std::string(60, ']')).find("nested this deep"),
            std::string::npos);
  EXPECT_NE(refused(std::string(60, '(') + "a" + std::string(60, ')')).find("nested this deep"),
            std::string::npos);
  EXPECT_NE(refused(R"(\p{Emoji})").find(R"(property \p{Emoji})"), std::string::npos);
  EXPECT_NE(refused(R"(a{x})").find("repeat {x}"), std::string::npos);
  EXPECT_NE(refused(R"({2}a)").find("repeat {2}"), std::string::npos);
  EXPECT_NE(refused("(a").find("a group that is not closed"), std::string::npos);
  EXPECT_NE(refused("a)").find("a ) without its ("), std::string::npos);
  EXPECT_NE(refused("a**").find("does not compile"), std::string::npos);
  EXPECT_NE(refused("[a").find("a class that is not closed"), std::string::npos);
  EXPECT_NE(refused(R"((*UTF)a)").find("verb (*"), std::string::npos);
  EXPECT_NE(refused(std::string(70000, 'a')).find("at most"), std::string::npos);
}

TEST(TokenizerPattern, GivesUpInsteadOfRunningForever) {
  EXPECT_NE(refusal([] {
              matches("(?:a|aa|a)+(?:a|aa)+b", std::string(60, 'a') + "cb");
            }).find("gives up on this text"),
            std::string::npos);
}

TEST(TokenizerPattern, LongGroupsNeedNoStack) {
  EXPECT_EQ(matches("(?:ab|c)+", std::string(2'000'000, 'c')).size(), 1u);
}

}  // namespace
}  // namespace pleat::data
