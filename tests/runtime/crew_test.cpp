// How a crew opens the groups of its programs.
#include "runtime/crew.h"

#include <gtest/gtest.h>

#include "config/resolve.h"

namespace pleat::runtime {
namespace {

class SilentGroup final : public comm::Communicator {
 public:
  SilentGroup(std::string name, std::span<const int> ranks, comm::RankFlight& flight,
              program::Meeting meeting)
      : Communicator(std::move(name), {ranks.begin(), ranks.end()}, 0, flight), meeting_(meeting) {}
  program::Meeting meeting() const override { return meeting_; }
  void execute(const comm::Call&) override {}
  int64_t device_bytes() const override { return 100; }

 private:
  program::Meeting meeting_;
};

struct SilentWindows final : comm::SharedWindows {
  SilentWindows() = default;
};

// Two ranks of which one is here; device buffers meet as `on_device` says.
class SilentEndpoint final : public comm::Endpoint {
 public:
  explicit SilentEndpoint(program::Meeting on_device) : on_device_(on_device) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::unique_ptr<comm::Communicator> group(const std::string& name, std::span<const int> ranks,
                                            comm::Buffers buffers, void* stream) override {
    if (buffers == comm::Buffers::Device) streams.push_back(stream);
    return std::make_unique<SilentGroup>(name, ranks, flight_, meeting(buffers));
  }
  std::vector<std::unique_ptr<comm::Communicator>> groups(std::span<const comm::WantedGroup> wanted,
                                                          comm::Buffers buffers) override {
    opened.push_back(wanted.size());
    return Endpoint::groups(wanted, buffers);
  }
  std::unique_ptr<comm::SharedWindows> share_windows(std::span<const int>, comm::Buffers,
                                                     const std::shared_ptr<std::byte>&) override {
    return std::make_unique<SilentWindows>();
  }
  std::unique_ptr<comm::Communicator> window_group(const std::string& name, std::span<const int> ranks,
                                                   comm::SharedWindows&, comm::Buffers buffers,
                                                   void*) override {
    return std::make_unique<SilentGroup>(name, ranks, flight_, meeting(buffers));
  }
  int64_t device_bytes() const override { return on_device_ == program::Meeting::OnDevice ? 7 : 0; }
  program::Meeting meeting(comm::Buffers buffers) const override {
    return buffers == comm::Buffers::Device ? on_device_ : program::Meeting::OnHost;
  }
  std::vector<void*> streams;  // of the groups opened for a device
  std::vector<size_t> opened;  // how many, each time they were opened together

 private:
  program::Meeting on_device_;
  comm::RankFlight flight_;
};

const std::set<Crew::Lane> kLanes = {{program::Group::World, "reduce"}, {program::Group::World, "compute"}};

config::Config two_replicas() {
  return config::resolve(
      config::parse("[model]\nffn_hidden_size = 682\n[train]\nnum_microbatches = 2\n", {}, "crew.toml"));
}

TEST(Crew, GroupsThatBlockAreKeptAndNeedNoStream) {
  SilentEndpoint endpoint(program::Meeting::OnHost);
  Crew crew(two_replicas(), endpoint, 1);
  EXPECT_EQ(crew.meeting(comm::Buffers::Device), program::Meeting::OnHost);
  const auto no_stream = [](const std::string&) -> void* {
    ADD_FAILURE() << "asked for a stream";
    return nullptr;
  };
  crew.open_groups(kLanes, comm::Buffers::Device, no_stream);
  const comm::Communicator* first = crew.group(program::Group::World, "reduce");
  crew.open_groups(kLanes, comm::Buffers::Device, no_stream);
  EXPECT_EQ(crew.group(program::Group::World, "reduce"), first);
  EXPECT_EQ(endpoint.streams.size(), kLanes.size());
}

TEST(Crew, EnqueuedGroupsBelongToTheStreamsTheyAreOpenedFor) {
  SilentEndpoint endpoint(program::Meeting::OnDevice);
  Crew crew(two_replicas(), endpoint, 1);
  EXPECT_EQ(crew.meeting(comm::Buffers::Device), program::Meeting::OnDevice);
  EXPECT_EQ(crew.meeting(comm::Buffers::Host), program::Meeting::OnHost);
  int stream[2][2];
  const auto streams = [&](int which) {
    return [&stream, which](const std::string& lane) -> void* { return &stream[which][lane == "reduce"]; };
  };
  crew.open_groups(kLanes, comm::Buffers::Device, streams(0));
  comm::Communicator* first = crew.group(program::Group::World, "reduce");
  EXPECT_EQ(endpoint.streams, (std::vector<void*>{&stream[0][0], &stream[0][1]}));
  crew.open_groups(kLanes, comm::Buffers::Device, streams(1));
  EXPECT_EQ(endpoint.streams,
            (std::vector<void*>{&stream[0][0], &stream[0][1], &stream[1][0], &stream[1][1]}));
  EXPECT_NE(crew.group(program::Group::World, "reduce"), first);
  first->barrier("whoever holds the earlier one may");
}

// A stage of a pipeline may have no lane that others open: it takes part all the same.
TEST(Crew, OpensItsGroupsInOneCallAlsoWhenItHasNone) {
  SilentEndpoint endpoint(program::Meeting::OnDevice);
  Crew crew(two_replicas(), endpoint, 1);
  const auto stream = [](const std::string&) -> void* { return nullptr; };
  crew.open_groups(kLanes, comm::Buffers::Device, stream);
  crew.open_groups({}, comm::Buffers::Device, stream);
  EXPECT_EQ(endpoint.opened, (std::vector<size_t>{kLanes.size(), 0}));
}

TEST(Crew, TellsWhatItsGroupsTookOfTheGpu) {
  const auto stream = [](const std::string&) -> void* { return nullptr; };
  SilentEndpoint enqueued(program::Meeting::OnDevice), blocking(program::Meeting::OnHost);
  Crew gpus(two_replicas(), enqueued, 1), threads(two_replicas(), blocking, 1);
  for (Crew* crew : {&gpus, &threads}) crew->open_groups(kLanes, comm::Buffers::Device, stream);
  gpus.open_groups(kLanes, comm::Buffers::Device, stream);  // those of before still hold theirs
  int64_t all = 0;
  for (const Crew::TakenMemory& t : gpus.device_memory_of_groups()) all += t.bytes;
  EXPECT_EQ(all, 7 + 4 * 100);
  EXPECT_TRUE(threads.device_memory_of_groups().empty());
  EXPECT_TRUE(Crew(two_replicas()).device_memory_of_groups().empty());
}

// Meetings about windows are no calls of the carrier's, and take nothing but the windows a program has planned.
TEST(Crew, GroupsOfWindowsTakeNothingOfTheCarrier) {
  const auto stream = [](const std::string&) -> void* { return nullptr; };
  SilentEndpoint endpoint(program::Meeting::OnDevice);
  Crew crew(two_replicas(), endpoint, 1);
  const auto memory = std::make_shared<std::byte>();
  const auto groups = [&] { return crew.device_memory_of_groups().size(); };
  for (int opened = 1; opened <= 2; ++opened) {  // those of before are no other
    crew.share_windows(program::Group::World, comm::Buffers::Device, memory);
    crew.open_groups({{program::Group::World, "reduce"}, {program::Group::World, "windows@compute"}},
                     comm::Buffers::Device, stream);
    ASSERT_NE(crew.group(program::Group::World, "windows@compute"), nullptr);
    EXPECT_EQ(groups(), static_cast<size_t>(1 + opened)) << "all ranks, and each lane that reduces";
  }
}

}  // namespace
}  // namespace pleat::runtime
