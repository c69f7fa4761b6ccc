// How a crew opens the groups of its programs.
#include "runtime/crew.h"

#include <gtest/gtest.h>

#include "config/resolve.h"

namespace pleat::runtime {
namespace {

class SilentGroup final : public comm::Communicator {
 public:
  SilentGroup(std::string name, std::span<const int> ranks, comm::RankFlight& flight, comm::Calls calls)
      : Communicator(std::move(name), {ranks.begin(), ranks.end()}, 0, flight), calls_(calls) {}
  comm::Calls calls() const override { return calls_; }
  void execute(const comm::Call&) override {}

 private:
  comm::Calls calls_;
};

// Two ranks of which one is here; device buffers meet as `device_calls` says.
class SilentEndpoint final : public comm::Endpoint {
 public:
  explicit SilentEndpoint(comm::Calls device_calls) : device_calls_(device_calls) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::unique_ptr<comm::Communicator> group(const std::string& name, std::span<const int> ranks,
                                            comm::Buffers buffers, void* stream) override {
    if (buffers == comm::Buffers::Device) streams.push_back(stream);
    return std::make_unique<SilentGroup>(name, ranks, flight_, calls(buffers));
  }
  comm::Calls calls(comm::Buffers buffers) const override {
    return buffers == comm::Buffers::Device ? device_calls_ : comm::Calls::Blocking;
  }
  std::vector<void*> streams;  // of the groups opened for a device

 private:
  comm::Calls device_calls_;
  comm::RankFlight flight_;
};

const std::set<Crew::Lane> kLanes = {{program::Group::World, "reduce"}, {program::Group::World, "compute"}};

config::Config two_replicas() {
  return config::resolve(
      config::parse("[model]\nffn_hidden_size = 682\n[train]\nnum_microbatches = 2\n", {}, "crew.toml"));
}

TEST(Crew, GroupsThatBlockAreKeptAndNeedNoStream) {
  SilentEndpoint endpoint(comm::Calls::Blocking);
  Crew crew(two_replicas(), endpoint, 1);
  EXPECT_EQ(crew.calls(comm::Buffers::Device), comm::Calls::Blocking);
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
  SilentEndpoint endpoint(comm::Calls::Enqueued);
  Crew crew(two_replicas(), endpoint, 1);
  EXPECT_EQ(crew.calls(comm::Buffers::Device), comm::Calls::Enqueued);
  EXPECT_EQ(crew.calls(comm::Buffers::Host), comm::Calls::Blocking);
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

}  // namespace
}  // namespace pleat::runtime
