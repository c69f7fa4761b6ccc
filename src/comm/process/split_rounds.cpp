#include "comm/process/split_rounds.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <sstream>

#include "base/error.h"

namespace pleat::comm {
namespace {

using GroupKey = std::pair<std::string, uint64_t>;

struct Gathered {
  std::vector<int> ranks;  // by place; -1: has not asked
  int first_asker = -1;
};

// One line per group: hash, size, place, name. Names hold no line breaks.
std::string to_text(std::span<const AskedGroup> asked) {
  std::string text;
  for (const AskedGroup& a : asked) {
    if (a.name.find('\n') != std::string::npos) base::fail("a group's name has a line break: '{}'", a.name);
    text += fmt::format("{:x} {} {} {}\n", a.hash, a.size, a.place, a.name);
  }
  return text;
}

std::vector<AskedGroup> asked_of(const std::string& text) {
  std::vector<AskedGroup> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    AskedGroup a;
    words >> std::hex >> a.hash >> std::dec >> a.size >> a.place;
    words.ignore(1);
    std::getline(words, a.name);
    PLEAT_CHECK(!a.name.empty(), "what a rank asks for cannot be read: '{}'", line);
    out.push_back(std::move(a));
  }
  return out;
}

Gathered& place_of(std::map<GroupKey, Gathered>& groups, const AskedGroup& a, int rank) {
  Gathered& g = groups[{a.name, a.hash}];
  if (g.ranks.empty()) {
    g.ranks.assign(static_cast<size_t>(std::max(a.size, 1)), -1);
    g.first_asker = rank;
  }
  if (a.place < 0 || a.place >= a.size || a.size != static_cast<int>(g.ranks.size()))
    base::fail("group '{}': rank {} says it is member {} of {}, rank {} that it has {} members", a.name, rank,
               a.place, a.size, g.first_asker, g.ranks.size());
  return g;
}

bool share_a_rank(const SplitGroup& a, const SplitGroup& b) {
  return std::find_first_of(a.ranks.begin(), a.ranks.end(), b.ranks.begin(), b.ranks.end()) != a.ranks.end();
}

}  // namespace

std::vector<SplitRound> split_rounds(std::span<const std::vector<AskedGroup>> by_rank) {
  std::map<GroupKey, Gathered> groups;  // in one order on all ranks
  for (size_t r = 0; r < by_rank.size(); ++r)
    for (const AskedGroup& a : by_rank[r]) {
      int& member = place_of(groups, a, static_cast<int>(r)).ranks[static_cast<size_t>(a.place)];
      if (member >= 0)
        base::fail("group '{}': ranks {} and {} ask for the same place, {}", a.name, member, r, a.place);
      member = static_cast<int>(r);
    }
  std::vector<SplitRound> rounds;
  for (auto& [key, g] : groups) {
    if (const auto missing = std::find(g.ranks.begin(), g.ranks.end(), -1); missing != g.ranks.end()) {
      std::vector<int> asking;
      for (const int r : g.ranks)
        if (r >= 0) asking.push_back(r);
      base::fail("group '{}' of {} ranks is opened by rank {} only; its member {} asks for others", key.first,
                 g.ranks.size(), fmt::join(asking, ", "), missing - g.ranks.begin());
    }
    SplitGroup group{key.first, std::move(g.ranks)};
    const auto has_room = [&](const SplitRound& round) {
      return std::none_of(round.begin(), round.end(),
                          [&](const SplitGroup& other) { return share_a_rank(group, other); });
    };
    const auto round = std::find_if(rounds.begin(), rounds.end(), has_room);
    (round == rounds.end() ? rounds.emplace_back() : *round).push_back(std::move(group));
  }
  return rounds;
}

std::vector<std::vector<AskedGroup>> exchange_asked(Communicator& world, std::span<const AskedGroup> mine) {
  const auto n = static_cast<size_t>(world.size());
  const std::string text = to_text(mine);
  const auto length = static_cast<int64_t>(text.size());
  std::vector<int64_t> lengths(n);
  const std::string stage = fmt::format("{} groups: how many", kOpening);
  world.all_gather(stage, std::as_bytes(std::span(&length, 1)), std::as_writable_bytes(std::span(lengths)));
  std::string all(static_cast<size_t>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0})), '\0');
  world.all_gather_v(fmt::format("{} groups: which", kOpening), std::as_bytes(std::span(text)),
                     std::as_writable_bytes(std::span(all)), lengths);
  std::vector<std::vector<AskedGroup>> by_rank(n);
  size_t at = 0;
  for (size_t r = 0; r < n; ++r) {
    by_rank[r] = asked_of(all.substr(at, static_cast<size_t>(lengths[r])));
    at += static_cast<size_t>(lengths[r]);
  }
  return by_rank;
}

}  // namespace pleat::comm
