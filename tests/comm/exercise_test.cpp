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

// Memory that is none of the host's: what a call is given lies elsewhere, and is done only when it is waited for.
class FarMemory final : public comm::ExerciseMemory {
 public:
  std::byte* allocate(int64_t bytes) override { return memory_->allocate(bytes); }
  void write(std::byte* to, const void* from, int64_t bytes) override { memory_->write(to, from, bytes); }
  void read(void* to, const std::byte* from, int64_t bytes) override {
    ++num_reads;
    memory_->read(to, from, bytes);
  }
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override { memory_->copy(to, from, bytes); }
  void wait(comm::Communicator& group) override {
    ++num_waits;
    memory_->wait(group);
  }
  void* stream() const override { return nullptr; }
  int num_reads = 0, num_waits = 0;

 private:
  std::unique_ptr<comm::ExerciseMemory> memory_ = comm::exercise_on_host();
};

TEST(Exercise, BuffersLieWhereTheMemorySays) {
  comm::LocalWorld world(3);
  const std::vector<int> ranks = {0, 1, 2};
  comm::run_ranks(world, [&](int rank) {
    const auto group = world.group("all", ranks, rank), words = world.group("words", ranks, rank);
    FarMemory memory;
    for (const comm::Exercised& e : comm::exercise(*group, *words, memory, {4096, 2}))
      EXPECT_EQ(e.fault, "") << e.operation;
    EXPECT_EQ(memory.num_reads, 11 * 2);           // each answer, small and large; a barrier has none
    EXPECT_EQ(memory.num_waits, 12 * 9 + 11 * 3);  // each call: one to check and 8, one and 2
  });
}

// A rank whose part is wrong is named on all of them, over the words' group.
TEST(Exercise, AWrongAnswerOfOneRankIsToldToAll) {
  class Forgetful final : public comm::ExerciseMemory {
   public:
    explicit Forgetful(bool forgets) : forgets_(forgets) {}
    std::byte* allocate(int64_t bytes) override { return memory_->allocate(bytes); }
    void write(std::byte* to, const void* from, int64_t bytes) override { memory_->write(to, from, bytes); }
    void read(void* to, const std::byte* from, int64_t bytes) override {
      memory_->read(to, from, bytes);
      if (forgets_) static_cast<float*>(to)[1] = 0;
    }
    void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
      memory_->copy(to, from, bytes);
    }
    void wait(comm::Communicator& group) override { memory_->wait(group); }
    void* stream() const override { return nullptr; }

   private:
    bool forgets_;
    std::unique_ptr<comm::ExerciseMemory> memory_ = comm::exercise_on_host();
  };
  comm::LocalWorld world(2);
  comm::run_ranks(world, [&](int rank) {
    const auto group = world.group("all", std::vector<int>{0, 1}, rank),
               words = world.group("words", std::vector<int>{0, 1}, rank);
    Forgetful memory(rank == 1);
    for (const comm::Exercised& e : comm::exercise(*group, *words, memory, {4096, 1})) {
      const char* want = e.operation == "barrier" ? "" : "rank 1: element 1 is 0";
      EXPECT_TRUE(e.fault.starts_with(want)) << e.operation << ": " << e.fault;
    }
  });
}

}  // namespace
}  // namespace pleat
