// Carriers of device memory: thread ranks that share the GPU, and NCCL with one rank.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <numeric>

#include "base/error.h"
#include "comm/comm_support.h"
#include "comm/local/local_world.h"
#include "comm/nccl/nccl_group.h"
#include "cuda/cuda_support.h"
#include "cuda/staged_communicator_support.h"
#include "device/cuda/cuda.h"
#include "device/cuda/query.h"
#include "tensor/bf16.h"

namespace pleat {
namespace {

using comm::Buffers;
using comm::Reduce;
using testing::bytes_of;

std::vector<int> all_of(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Runs `fn` on every rank with a communicator of host buffers, whatever moves them.
template <class Fn>
void each_rank(int size, Buffers buffers, Fn fn) {
  comm::Options options;
  options.timeout_seconds = 60;
  options.check = true;
  comm::LocalWorld world(size, options);
  std::vector<comm::RankFlight> flights(static_cast<size_t>(size));
  comm::run_ranks(world, [&](int rank) {
    comm::RankFlight& flight = flights[static_cast<size_t>(rank)];
    flight.start(getpid());
    const auto group = world.group("all", all_of(size), rank, buffers);
    if (buffers == Buffers::Host) return fn(*group);
    fn(*testing::staged(*group, flight));
  });
}

TEST(CudaComm, EveryCollectiveHasTheBitsOfTheHost) {
  PLEAT_NEEDS_GPU();
  for (const int size : {1, 2, 3, 4}) {
    std::string digests[2];
    for (const Buffers buffers : {Buffers::Host, Buffers::Device})
      each_rank(size, buffers, [&](comm::Communicator& c) {
        std::string digest;
        EXPECT_EQ(testing::run_cases(c, digest), "") << size << " ranks";
        if (c.rank() == 0) digests[static_cast<size_t>(buffers)] = digest;
      });
    EXPECT_EQ(digests[0], digests[1]) << size << " ranks";
  }
}

TEST(CudaComm, NarrowReductionsHaveTheBitsOfTheHost) {
  PLEAT_NEEDS_GPU();
  constexpr size_t kCount = 1003;  // no multiple of anything
  std::vector<std::vector<uint16_t>> results[2];
  for (const Buffers buffers : {Buffers::Host, Buffers::Device}) {
    auto& into = results[static_cast<size_t>(buffers)];
    into.resize(4 * 3);
    each_rank(4, buffers, [&](comm::Communicator& c) {
      for (const Reduce reduce : {Reduce::Sum, Reduce::Max, Reduce::Min}) {
        std::vector<uint16_t> v(kCount);
        for (size_t i = 0; i < kCount; ++i) {
          const int number = static_cast<int>((i * 37 + static_cast<size_t>(c.rank()) * 101) % 997) - 498;
          v[i] = tensor::narrowed(std::ldexp(static_cast<float>(number), static_cast<int>(i % 9) - 4));
        }
        c.all_reduce("bf16", bytes_of(v), bytes_of(v), tensor::Dtype::BF16, reduce);
        into[static_cast<size_t>(c.rank()) * 3 + static_cast<size_t>(reduce)] = v;
      }
    });
    for (size_t i = 3; i < into.size(); ++i) EXPECT_EQ(into[i], into[i % 3]) << "ranks disagree";
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(CudaComm, BuffersOfAGroupLieInOnePlace) {
  PLEAT_NEEDS_GPU();
  comm::LocalWorld world(2);
  const auto first = world.group("tp", all_of(2), 0, Buffers::Device);
  try {
    world.group("tp", all_of(2), 1, Buffers::Host);
    FAIL() << "not refused";
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("another rank said otherwise"), std::string::npos) << e.what();
  }
}

// One rank's group on a lane of its own.
struct NcclAlone {
  NcclAlone() {
    flight.start(getpid());
    group = world->split({"all", {0}, 0, lane.stream()}, flight, {}, nullptr);
  }
  device::cuda::Lane lane;
  comm::RankFlight flight;
  std::unique_ptr<comm::NcclWorld> world = comm::make_nccl_world(comm::make_nccl_id(), 0, 1);
  std::unique_ptr<comm::Communicator> group;
};

TEST(CudaComm, NcclAloneDoesEveryCall) {
  PLEAT_NEEDS_GPU();
  if (!comm::nccl_is_built_in()) GTEST_SKIP() << "NCCL is " << comm::nccl_description();
  NcclAlone alone;
  comm::RankFlight outer;
  outer.start(getpid());
  std::string nccl;
  EXPECT_EQ(testing::run_cases(*testing::staged(*alone.group, outer), nccl), "") << comm::nccl_description();
  // Alone nothing is added: the bits are those of any carrier.
  std::string host;
  each_rank(1, Buffers::Host, [&](comm::Communicator& c) { EXPECT_EQ(testing::run_cases(c, host), ""); });
  EXPECT_EQ(nccl, host);
}

std::span<std::byte> bytes_at(const device::cuda::Memory& m) {
  return {m.data(), static_cast<size_t>(m.size())};
}

// The call returns while work before it on the stream still runs; what comes behind it sees its result.
TEST(CudaComm, NcclCallsTakeTheirPlaceOnTheStream) {
  PLEAT_NEEDS_GPU();
  if (!comm::nccl_is_built_in()) GTEST_SKIP() << "NCCL is " << comm::nccl_description();
  NcclAlone nccl;
  EXPECT_EQ(nccl.group->meeting(), program::Meeting::OnDevice);
  constexpr int64_t kBytes = int64_t{1} << 30;
  device::cuda::Memory large(kBytes), in(4096), out(4096), behind(4096);
  nccl.group->barrier("the first call sets up");
  nccl.lane.synchronize();
  EXPECT_TRUE(nccl.group->watch());
  nccl.lane.fill(in.data(), 1, in.size());
  for (int i = 0; i < 100; ++i) nccl.lane.fill(large.data(), i, kBytes);  // tens of milliseconds
  nccl.lane.fill(in.data(), 7, in.size());
  nccl.group->all_reduce("sum", bytes_at(in), bytes_at(out), tensor::Dtype::I32, Reduce::Sum);
  nccl.group->reduce_scatter("scatter", bytes_at(out), bytes_at(out), tensor::Dtype::I32, Reduce::Sum);
  nccl.lane.copy(behind.data(), out.data(), out.size());
  nccl.lane.fill(out.data(), 9, out.size());
  nccl.group->all_gather("gather", bytes_at(out), bytes_at(in));
  EXPECT_FALSE(device::cuda::is_done(nccl.lane)) << "the host has waited";
  EXPECT_FALSE(nccl.group->watch());
  bool in_flight = false;
  for (const comm::FlightEntry& e : nccl.flight.entries())
    in_flight |= e.state == comm::FlightState::InFlight;
  EXPECT_TRUE(in_flight);
  std::vector<unsigned char> got(4096), last(4096);
  nccl.lane.copy_out(got.data(), behind.data(), 4096);
  nccl.lane.copy_out(last.data(), in.data(), 4096);
  nccl.lane.synchronize();
  EXPECT_EQ(got, std::vector<unsigned char>(4096, 7));
  EXPECT_EQ(last, std::vector<unsigned char>(4096, 9));
  EXPECT_TRUE(nccl.group->watch());
}

TEST(CudaComm, NcclCallsGoIntoAGraph) {
  PLEAT_NEEDS_GPU();
  if (!comm::nccl_is_built_in()) GTEST_SKIP() << "NCCL is " << comm::nccl_description();
  NcclAlone nccl;
  device::cuda::Memory in(4096), out(4096);
  nccl.group->barrier("the first call sets up");
  nccl.lane.synchronize();
  EXPECT_TRUE(nccl.group->watch());
  device::cuda::Graph graph;
  graph.capture(nccl.lane, [&] {
    nccl.group->all_reduce("sum", bytes_at(in), bytes_at(out), tensor::Dtype::I32, Reduce::Sum);
    nccl.group->all_gather("gather", bytes_at(out), bytes_at(in));
  });
  EXPECT_TRUE(nccl.group->watch()) << "captured is not under way";
  const int calls = nccl.group->captured();
  for (int i = 1; i <= 3; ++i) {
    nccl.lane.fill(in.data(), i, in.size());
    nccl.group->launched(calls);
    graph.launch(nccl.lane);
    std::vector<unsigned char> got(4096);
    nccl.lane.copy_out(got.data(), out.data(), 4096);
    nccl.lane.synchronize();
    EXPECT_EQ(got, std::vector<unsigned char>(4096, static_cast<unsigned char>(i)));
    EXPECT_TRUE(nccl.group->watch());
  }
  EXPECT_EQ(std::string(nccl.flight.entries().front().stage), "gather");
}

// Every group has its own communicator: one that was ended takes no other with it.
TEST(CudaComm, NcclGroupsOfOneWorldEndByThemselves) {
  PLEAT_NEEDS_GPU();
  if (!comm::nccl_is_built_in()) GTEST_SKIP() << "NCCL is " << comm::nccl_description();
  NcclAlone first;
  device::cuda::Lane lane;
  const auto second = first.world->split({"second", {0}, 0, lane.stream()}, first.flight, {}, nullptr);
  first.world->stand_aside();
  first.group->barrier("one");
  first.group->abort("not needed any more");
  second->barrier("two");
  lane.synchronize();
  EXPECT_TRUE(second->watch());
  EXPECT_GE(second->device_bytes(), 0);
}

TEST(CudaComm, AnAbortedNcclGroupRefusesCalls) {
  PLEAT_NEEDS_GPU();
  if (!comm::nccl_is_built_in()) GTEST_SKIP() << "NCCL is " << comm::nccl_description();
  NcclAlone nccl;
  nccl.group->barrier("before");
  nccl.group->abort("another lane failed");
  try {
    nccl.group->barrier("after");
    FAIL() << "not refused";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ExitCode::Retry);
    EXPECT_NE(std::string(e.what()).find("barrier #1 of stage 'after' on rank 0"), std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace pleat
