// Groups of a world of processes with device buffers, over a pretended library in which thread ranks meet: who takes part
// in which split, in which order, and what is said when one does not.
#include "comm/process/device_groups.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <mutex>

#include "base/error.h"
#include "comm/comm_support.h"
#include "comm/enqueued.h"
#include "comm/local/local_world.h"

namespace pleat::comm {
namespace {

// Calls are those of a local group, done at once.
class PretendedNcclGroup final : public EnqueuedCommunicator {
 public:
  PretendedNcclGroup(const NcclWorld::Group& g, RankFlight& flight, const Inject& inject,
                     std::unique_ptr<Communicator> device, std::unique_ptr<Communicator> host)
      : EnqueuedCommunicator(g.name, g.world_ranks, g.rank, flight, inject),
        stream(g.stream),
        is_compared(host != nullptr),
        device_(std::move(device)) {
    compare_over(std::move(host));
  }
  void* const stream;
  const bool is_compared;
  int64_t device_bytes() const override { return 5; }

 private:
  void execute(const Call& call) override {
    ++done_;
    if (call.operation == Operation::AllReduce)
      return device_->all_reduce("x", call.in, call.out, call.dtype, call.reduce);
    device_->barrier("x");
  }
  uint64_t num_done() const override { return done_; }
  bool capturing() const override { return false; }
  std::string fault() override { return ""; }

  std::unique_ptr<Communicator> device_;
  uint64_t done_ = 0;
};

// What each rank did, in order.
struct Log {
  explicit Log(int size) : by_rank(static_cast<size_t>(size)) {}
  std::vector<std::vector<std::string>> by_rank;
  std::atomic<int> num_ids{0}, num_starts{0};
};

// Splits in which all ranks of the world must take part, as those of the library: it would hang without one.
class PretendedNccl final : public NcclWorld {
 public:
  PretendedNccl(LocalWorld& world, int rank, Log& log)
      : world_(world),
        rank_(rank),
        log_(log),
        all_(world.group("library", testing::all_of(world.size()), rank)) {
    ++log_.num_starts;
  }
  std::unique_ptr<Communicator> split(const Group& g, RankFlight& flight, const Inject& inject,
                                      std::unique_ptr<Communicator> host) override {
    meet(g.world_ranks.front() + 1);
    log_.by_rank[static_cast<size_t>(rank_)].push_back(g.name);
    return std::make_unique<PretendedNcclGroup>(
        g, flight, inject, world_.group(fmt::format("{} {}", g.name, num_splits_), g.world_ranks, rank_),
        std::move(host));
  }
  void stand_aside() override {
    meet(0);
    log_.by_rank[static_cast<size_t>(rank_)].push_back("-");
  }
  int64_t device_bytes() const override { return 3; }

 private:
  void meet(int64_t color) {
    ++num_splits_;
    std::vector<int64_t> colors(static_cast<size_t>(world_.size()));
    all_->all_gather("split", std::as_bytes(std::span(&color, 1)), std::as_writable_bytes(std::span(colors)));
  }

  LocalWorld& world_;
  int rank_, num_splits_ = 0;
  Log& log_;
  std::unique_ptr<Communicator> all_;
};

DeviceGroups::Process process_of(LocalWorld& world, int rank, Log& log, RankFlight& flight) {
  DeviceGroups::Process p;
  p.rank = rank;
  p.size = world.size();
  p.host_group = [&world, rank](const std::string& name, std::span<const int> ranks) {
    return world.group(name, ranks, rank);
  };
  p.recorded = [&log, rank](std::string_view stage, uint64_t sequence, const std::function<void()>& work) {
    log.by_rank[static_cast<size_t>(rank)].push_back(fmt::format("{} {}", sequence, stage));
    work();
  };
  p.make_id = [&log] {
    ++log.num_ids;
    return NcclId{std::byte{42}};
  };
  p.start = [&world, rank, &log](const NcclId& id) {
    EXPECT_EQ(id[0], std::byte{42}) << "the id of rank 0 has not come to rank " << rank;
    return std::make_unique<PretendedNccl>(world, rank, log);
  };
  p.flight = &flight;
  return p;
}

template <class Fn>
void each_rank(int size, Log& log, bool check, Fn fn, const Inject& inject = {}) {
  Options options;
  options.timeout_seconds = 30;
  LocalWorld world(size, options);
  run_ranks(world, [&](int rank) {
    RankFlight flight;
    flight.start(getpid());
    DeviceGroups::Process process = process_of(world, rank, log, flight);
    process.check = check;
    process.inject = inject;
    DeviceGroups groups(std::move(process));
    fn(groups, rank);
  });
}

using Names = std::vector<std::string>;

TEST(DeviceGroups, AllRanksTakePartInEverySplit) {
  Log log(4);
  int streams[4][3];
  each_rank(4, log, false, [&](DeviceGroups& groups, int rank) {
    EXPECT_EQ(groups.device_bytes(), 0);
    const int stage = rank / 2 * 2;
    std::vector<WantedGroup> wanted = {{fmt::format("tp:{}", stage), {stage, stage + 1}, &streams[rank][0]},
                                       {"world", testing::all_of(4), &streams[rank][1]}};
    if (rank >= 2) wanted.push_back({"last", {3, 2}, &streams[rank][2]});  // in an order of its own
    if (rank % 2 == 1) std::reverse(wanted.begin(), wanted.end());  // what is asked first does not matter
    const auto made = groups.open(wanted);
    ASSERT_EQ(made.size(), wanted.size());
    for (size_t i = 0; i < made.size(); ++i) {
      EXPECT_EQ(made[i]->name(), wanted[i].name);
      EXPECT_EQ(std::vector<int>(made[i]->world_ranks().begin(), made[i]->world_ranks().end()),
                wanted[i].ranks);
      EXPECT_EQ(wanted[i].ranks[static_cast<size_t>(made[i]->rank())], rank);
      const auto& group = dynamic_cast<const PretendedNcclGroup&>(*made[i]);
      EXPECT_EQ(group.stream, wanted[i].stream);
      EXPECT_FALSE(group.is_compared);
    }
    EXPECT_EQ(groups.device_bytes(), 3);
    for (const char* name : {"tp", "world", "last"})
      for (const auto& group : made)
        if (group->name().starts_with(name)) {
          float one = 1;
          group->all_reduce("sum", std::span(&one, 1), Reduce::Sum);
          EXPECT_EQ(one, static_cast<float>(group->size()));
        }
  });
  const Names first = {
      "0 opening NCCL", "1 opening 'last' and 1 more", "tp:0", "2 opening 'tp:2'", "-", "3 opening 'world'",
      "world"};
  const Names last = {"0 opening NCCL", "1 opening 'last' and 1 more", "last", "2 opening 'tp:2'",
                      "tp:2",           "3 opening 'world'",           "world"};
  EXPECT_EQ(log.by_rank[0], first);
  EXPECT_EQ(log.by_rank[1], first);
  EXPECT_EQ(log.by_rank[2], last);
  EXPECT_EQ(log.by_rank[3], last);
}

TEST(DeviceGroups, TheWorldIsMadeOnce) {
  Log log(3);
  each_rank(3, log, false, [&](DeviceGroups& groups, int rank) {
    const WantedGroup all{"all", testing::all_of(3), nullptr};
    const auto first = groups.open({&all, 1});
    // A rank that asks for none, while two open a pair.
    const WantedGroup pair{"pair", {0, 2}, nullptr};
    EXPECT_EQ(groups.open({&pair, rank == 1 ? 0U : 1U}).size(), rank == 1 ? 0U : 1U);
    EXPECT_TRUE(groups.open({}).empty());
    const auto second = groups.open({&all, 1});  // of other streams
    first[0]->barrier("the earlier one is still there");
    second[0]->barrier("and the new one");
  });
  EXPECT_EQ(log.num_ids, 1);
  EXPECT_EQ(log.num_starts, 3);
  EXPECT_EQ(log.by_rank[1], (Names{"0 opening NCCL", "1 opening 'all'", "all", "2 opening 'pair'", "-",
                                   "3 opening 'all'", "all"}));
}

TEST(DeviceGroups, AMemberThatAsksForOthersIsToldToAll) {
  Log log(3);
  std::mutex mutex;
  Names errors;
  each_rank(3, log, false, [&](DeviceGroups& groups, int rank) {
    const WantedGroup all{"all", testing::all_of(3), nullptr};
    try {
      groups.open({&all, rank == 1 ? 0U : 1U});
    } catch (const base::Error& e) {
      const std::lock_guard lock(mutex);
      errors.emplace_back(e.what());
    }
  });
  EXPECT_EQ(errors,
            Names(3, "group 'all' of 3 ranks is opened by rank 0, 2 only; its member 1 asks for others"));
}

TEST(DeviceGroups, CheckModeComparesCallsOverHostMemory) {
  Log log(3);
  std::mutex mutex;
  Names errors;
  each_rank(3, log, true, [&](DeviceGroups& groups, int rank) {
    const WantedGroup all{"all", testing::all_of(3), nullptr};
    const auto made = groups.open({&all, 1});
    EXPECT_TRUE(dynamic_cast<const PretendedNcclGroup&>(*made[0]).is_compared);
    made[0]->barrier("same");
    try {
      made[0]->barrier(rank == 2 ? "other" : "same");
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ExitCode::BadInput);
      const std::lock_guard lock(mutex);
      errors.emplace_back(e.what());
    }
  });
  EXPECT_EQ(errors,
            Names(3,
                  "group 'all' (ranks 0 1 2), call 1: ranks 0 and 2 do not agree on the stage: rank 0 calls "
                  "barrier for stage 'same' (call 1), rank 2 calls barrier for stage 'other' (call 1)"));
}

TEST(DeviceGroups, FaultsOnPurposeReachTheirCalls) {
  Log log(2);
  std::atomic<int> seen{0};
  each_rank(
      2, log, false,
      [&](DeviceGroups& groups, int) {
        const WantedGroup all{"all", testing::all_of(2), nullptr};
        groups.open({&all, 1})[0]->barrier("left out by both");
      },
      [&](int, std::string_view group, int, Call& call) {
        EXPECT_EQ(group, "all");
        EXPECT_EQ(call.stage, "left out by both");
        ++seen;
        return false;
      });
  EXPECT_EQ(seen, 2);
}

}  // namespace
}  // namespace pleat::comm
