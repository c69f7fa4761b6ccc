#include "comm/process/device_groups.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "comm/process/split_rounds.h"

namespace pleat::comm {
namespace {

int place_in(const WantedGroup& wanted, int rank) {
  return static_cast<int>(std::find(wanted.ranks.begin(), wanted.ranks.end(), rank) - wanted.ranks.begin());
}

}  // namespace

DeviceGroups::DeviceGroups(Process process) : process_(std::move(process)) {}

std::vector<std::unique_ptr<Communicator>> DeviceGroups::open(std::span<const WantedGroup> wanted) {
  start();
  std::vector<AskedGroup> asked;
  for (const WantedGroup& w : wanted)
    asked.push_back(
        {w.name, group_hash(w.name, w.ranks), static_cast<int>(w.ranks.size()), place_in(w, process_.rank)});
  const std::vector<SplitRound> rounds = split_rounds(exchange_asked(*meeting_, asked));
  std::vector<std::unique_ptr<Communicator>> made(wanted.size());
  for (const SplitRound& round : rounds) {
    const auto is_in_round = [&](const WantedGroup& w) {
      return std::any_of(round.begin(), round.end(),
                         [&](const SplitGroup& g) { return g.name == w.name && g.ranks == w.ranks; });
    };
    // Of groups that share no rank this one is in one at most.
    const auto mine = std::find_if(wanted.begin(), wanted.end(), is_in_round);
    // The same words on all ranks, so that the recorder can compare them; errors name the rank's own group.
    const std::string more = round.size() > 1 ? fmt::format(" and {} more", round.size() - 1) : "";
    process_.recorded(fmt::format("{} '{}'{}", kOpening, round.front().name, more), num_opened_++, [&] {
      if (mine == wanted.end())
        nccl_->stand_aside();
      else
        made[static_cast<size_t>(mine - wanted.begin())] = split(*mine);
    });
  }
  return made;
}

std::unique_ptr<Communicator> DeviceGroups::split(const WantedGroup& wanted) {
  // Made here, where all members make theirs: over MPI that waits for them.
  std::unique_ptr<Communicator> host;
  if (process_.check) host = process_.host_group(wanted.name + " (check)", wanted.ranks);
  return nccl_->split({wanted.name, wanted.ranks, place_in(wanted, process_.rank), wanted.stream},
                      *process_.flight, process_.inject, std::move(host));
}

void DeviceGroups::start() {
  if (nccl_) return;
  std::vector<int> all(static_cast<size_t>(process_.size));
  std::iota(all.begin(), all.end(), 0);
  if (!meeting_) meeting_ = process_.host_group("groups of GPUs", all);
  NcclId id{};
  if (process_.rank == 0) id = process_.make_id();
  meeting_->broadcast(fmt::format("{} NCCL: its id", kOpening), id, 0);
  process_.recorded(fmt::format("{} NCCL", kOpening), num_opened_++, [&] { nccl_ = process_.start(id); });
}

}  // namespace pleat::comm
