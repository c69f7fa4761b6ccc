// The picture of a layout: a document that parses, and every rank once in each panel, at the same place.
#include "layout/picture.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>

#include "base/error.h"

namespace pleat::layout {
namespace {

// Whether tags nest and close, attributes are quoted and names are names: enough of XML for what is written.
std::string xml_fault(const std::string& text) {
  static const std::regex kTag(
      R"(<(/?)([A-Za-z][A-Za-z0-9]*)((?:\s+[A-Za-z][-A-Za-z0-9:]*="[^"<&]*")*)\s*(/?)>)");
  std::vector<std::string> open;
  size_t at = 0;
  while (at < text.size()) {
    const size_t next = text.find('<', at);
    const std::string between = text.substr(at, next == std::string::npos ? next : next - at);
    if (between.find_first_of(">&") != std::string::npos) return "text with a sign of markup: " + between;
    if (next == std::string::npos) break;
    if (open.empty() && at > 0 && text.find_first_not_of('\n', at) != std::string::npos)
      return "more than one root";
    std::smatch tag;
    const std::string rest = text.substr(next, 2000);
    if (!std::regex_search(rest, tag, kTag, std::regex_constants::match_continuous))
      return rest.substr(0, 80);
    if (tag[1].length() > 0) {
      if (open.empty() || open.back() != tag[2]) return "closes what is not open: " + tag.str();
      open.pop_back();
    } else if (tag[4].length() == 0) {
      open.push_back(tag[2]);
    }
    at = next + static_cast<size_t>(tag.length());
  }
  return open.empty() ? "" : "not closed: " + open.back();
}

struct Drawn {
  std::string where, place;  // "x,y" and the words under the number
};

std::map<std::string, std::map<int, std::vector<Drawn>>> ranks_of(const std::string& svg) {
  static const std::regex kRank(
      "<g class=\"rank\" data-panel=\"([a-z]+)\" data-rank=\"([0-9]+)\"><title>rank ([0-9]+): ([^<]*)</title>"
      "<rect x=\"([0-9]+)\" y=\"([0-9]+)\"[^>]*/><text[^>]*>([0-9]+)</text><text[^>]*>([^<]*)</text></g>");
  std::map<std::string, std::map<int, std::vector<Drawn>>> out;
  for (std::sregex_iterator i(svg.begin(), svg.end(), kRank), end; i != end; ++i) {
    EXPECT_EQ((*i)[2], (*i)[3]);
    EXPECT_EQ((*i)[2], (*i)[7]);
    EXPECT_EQ((*i)[4], (*i)[8]);
    out[(*i)[1]][std::stoi((*i)[2])].push_back({(*i)[5].str() + "," + (*i)[6].str(), (*i)[4]});
  }
  return out;
}

Sizes sizes(int64_t world, int64_t tp, int64_t cp, int64_t pp, int64_t ep, int64_t etp) {
  Sizes s;
  s.world = world, s.tp = tp, s.cp = cp, s.pp = pp, s.ep = ep, s.etp = etp;
  return s;
}

TEST(Picture, HasEveryRankOnceInEachPanel) {
  for (const Sizes& s : {sizes(1, 1, 1, 1, 1, 1), sizes(16, 2, 2, 2, 4, 1), sizes(8, 4, 1, 1, 8, 1),
                         sizes(24, 2, 1, 3, 2, 2), sizes(64, 1, 2, 4, 8, 1), sizes(1024, 2, 1, 8, 64, 1)}) {
    SCOPED_TRACE(s.world);
    const Layout l(s);
    const std::string svg = picture(l);
    EXPECT_EQ(xml_fault(svg), "");
    auto panels = ranks_of(svg);
    ASSERT_EQ(panels.size(), 2u);
    std::map<std::string, int> taken;
    for (int r = 0; r < s.world; ++r) {
      ASSERT_EQ(panels["attention"][r].size(), 1u) << r;
      ASSERT_EQ(panels["experts"][r].size(), 1u) << r;
      EXPECT_EQ(taken[panels["attention"][r][0].where]++, 0) << r;
      EXPECT_EQ(taken[panels["experts"][r][0].where]++, 0) << r;
      EXPECT_TRUE(panels["attention"][r][0].place.starts_with(fmt::format("tp {} ", l.attention(r).tp)));
      EXPECT_TRUE(panels["experts"][r][0].place.starts_with(fmt::format("ep {} ", l.expert(r).ep)));
    }
    EXPECT_EQ(panels["attention"].size(), size_t(s.world));
    EXPECT_EQ(panels["experts"].size(), size_t(s.world));
  }
}

TEST(Picture, TooManyRanksAreRefused) {
  try {
    picture(Layout(sizes(2048, 2, 1, 8, 64, 1)));
    FAIL();
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("2048 ranks"), std::string::npos) << e.what();
  }
}

TEST(Picture, TheJudgeOfDocumentsSeesFaults) {
  EXPECT_EQ(xml_fault("<svg a=\"1\"><g><b/></g>text</svg>\n"), "");
  for (const char* bad :
       {"<svg><g></svg></g>", "<svg>", "<svg a=1></svg>", "<svg>a & b</svg>", "<svg></svg><svg></svg>"})
    EXPECT_NE(xml_fault(bad), "") << bad;
}

}  // namespace
}  // namespace pleat::layout
