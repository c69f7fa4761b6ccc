// The shift round a ring: everybody at once, whatever the size; who does not come, or comes with another
// size, is named.
#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "comm/comm_support.h"
#include "comm/local/local_world.h"
#include "support/refusal.h"

namespace pleat {
namespace {

using comm::LocalWorld;
using pleat::testing::message_of;
using testing::all_of;
using testing::bytes_of;

TEST(Shift, BlocksTravelRoundTheRingAndHome) {
  const int size = 5;
  LocalWorld world(size);
  comm::run_ranks(world, [&](int rank) {
    const auto c = world.group("cp", all_of(size), rank);
    std::vector<int64_t> here(1 << 16, rank), next(here.size());
    for (int step = 1; step <= size; ++step) {
      c->shift("round", bytes_of(here), bytes_of(next));
      here.swap(next);
      const int64_t owner = (rank + size - step % size) % size;
      ASSERT_EQ(here, std::vector<int64_t>(here.size(), owner)) << "step " << step;
    }
  });
}

TEST(Shift, OtherSizeIsNamed) {
  LocalWorld world(3);
  const std::string said = message_of([&] {
    comm::run_ranks(world, [&](int rank) {
      std::vector<float> a(rank == 1 ? 5 : 4), b(a.size());
      world.group("cp", all_of(3), rank)->shift("fwd mb0 L1 cp_shift.1", bytes_of(a), bytes_of(b));
    });
  });
  EXPECT_NE(
      said.find("ranks 0 and 1 do not agree on the shape: rank 0 calls shift 16 bytes for stage 'fwd mb0 "
                "L1 cp_shift.1'"),
      std::string::npos)
      << said;
}

TEST(Shift, WhoDoesNotComeIsNamed) {
  std::string table;
  LocalWorld* stuck = nullptr;
  comm::Options options;
  options.timeout_seconds = 0.2;
  options.on_stall = [&](const std::string& text) {
    table = text;
    stuck->abort(-1, "stalled");
  };
  LocalWorld world(3, options);
  stuck = &world;
  message_of([&] {
    comm::run_ranks(world, [&](int rank) {
      std::vector<float> a(4), b(4);
      const auto c = world.group("cp", all_of(3), rank);
      if (rank != 2) c->shift("fwd mb0 L1 cp_shift.1", bytes_of(a), bytes_of(b));
    });
  });
  EXPECT_NE(table.find("group 'cp' shift #0 stage 'fwd mb0 L1 cp_shift.1' to rank"), std::string::npos)
      << table;
  EXPECT_NE(table.find("2  NOT ARRIVED"), std::string::npos) << table;
}

TEST(Shift, ArgumentsAreRefusedBeforeAnythingMoves) {
  LocalWorld world(1);
  comm::run_ranks(world, [&](int rank) {
    const auto c = world.group("cp", all_of(1), rank);
    std::vector<float> a(4), b(3), whole(6);
    EXPECT_NE(message_of([&] { c->shift("s", bytes_of(a), bytes_of(b)); }).find("16 bytes in, 12 bytes out"),
              std::string::npos);
    const auto bytes = bytes_of(whole);
    EXPECT_NE(message_of([&] { c->shift("s", bytes.first(16), bytes.subspan(8)); }).find("overlap"),
              std::string::npos);
    std::vector<float> to(4);
    a = {1, 2, 3, 4};
    c->shift("s", bytes_of(a), bytes_of(to));
    EXPECT_EQ(to, a);
  });
}

}  // namespace
}  // namespace pleat
