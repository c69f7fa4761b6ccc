// The doctor's exercise: silent on a sound group, loud on one that loses data.
#include "comm/exercise.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "comm/local/local_world.h"

namespace pleat {
namespace {

TEST(Exercise, SoundGroupsHaveNoFault) {
  for (const int size : {1, 2, 3, 5}) {
    comm::LocalWorld world(size);
    std::vector<int> ranks(static_cast<size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
    comm::run_ranks(world, [&](int rank) {
      const auto group = world.group("all", ranks, rank);
      const auto results = comm::exercise(*group, {4096, 2});
      EXPECT_EQ(results.size(), 12U);
      for (const comm::Exercised& e : results) {
        EXPECT_EQ(e.fault, "") << e.operation;
        EXPECT_GT(e.latency_seconds, 0) << e.operation;
        if (size > 1) {
          EXPECT_EQ(e.bytes_per_second > 0, e.operation != "barrier") << e.operation;
        }
      }
    });
  }
}

// Carries nothing at all.
class Deaf : public comm::Communicator {
 public:
  explicit Deaf(comm::RankFlight& flight) : Communicator("deaf", {0}, 0, flight) {}

 private:
  void execute(const comm::Call&) override {}
};

TEST(Exercise, LostDataIsNamed) {
  const auto flight = std::make_unique<comm::RankFlight>();
  Deaf deaf(*flight);
  int faults = 0;
  for (const comm::Exercised& e : comm::exercise(deaf, {4096, 1})) {
    if (e.fault.empty()) continue;
    ++faults;
    EXPECT_EQ(e.fault, "rank 0: element 0 is nan, needed 1") << e.operation;
  }
  EXPECT_EQ(faults, 9);  // a lone rank's broadcast, line of messages and barrier move nothing
  EXPECT_THROW(comm::exercise(deaf, {6, 1}), base::Error);
}

}  // namespace
}  // namespace pleat
