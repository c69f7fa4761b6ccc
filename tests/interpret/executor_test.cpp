// Programs run in list order: messages that are one call.
#include "interpret/run/executor.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "base/error.h"
#include "device/cpu/arena.h"
#include "device/cpu/pool.h"
#include "interpret/plan/plan.h"
#include "program/builder.h"

namespace pleat::interpret {
namespace {

// The middle one of three ranks. What it sends cannot be sent; the others give it nothing, until they hear that it failed.
class FailingEnd final : public comm::Communicator {
 public:
  FailingEnd(comm::RankFlight& flight, comm::Operation fails)
      : Communicator("stages", {0, 1, 2}, 1, flight), fails_(fails) {}
  void abort(const std::string& why) override {
    const std::lock_guard lock(mutex_);
    told.push_back(why);
    changed_.notify_all();
  }
  std::vector<std::string> told;

 private:
  void execute(const comm::Call& call) override {
    if (call.operation == fails_) base::fail_with(base::ExitCode::Numerical, "planted");
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(30), [&] { return !told.empty(); }))
      ADD_FAILURE() << "nobody told that this rank has failed";
    base::fail_with(base::ExitCode::Retry, "called off");
  }
  const comm::Operation fails_;
  std::mutex mutex_;
  std::condition_variable changed_;
};

// To the next stage and from it, on a lane each: one call.
program::Program both_ways() {
  using program::Op;
  using program::Phase;
  program::Builder b("both ways");
  b.lane("send", "comm");
  b.lane("receive", "comm");
  const program::ValueId out = b.value("out", tensor::Dtype::F32, {4}, program::Owner::Activations,
                                       program::Life::Input),
                         in = b.value("in", tensor::Dtype::F32, {4}, program::Owner::Results,
                                      program::Life::Result);
  b.at({0}, 0);
  b.transfer(Op::send_x, Phase::Forward, program::Peer::Next, {program::r(out)});
  b.at({0}, 1);
  b.transfer(Op::receive_x, Phase::BackwardInput, program::Peer::Next, {program::w(in)});
  return b.take();
}

// On the thread that runs the program, and on one beside it.
TEST(Executor, AMessageThatFailsEndsThoseThatAreOneCallWithIt) {
  const program::Program program = both_ways();
  const Plan planned = plan(program);
  device::Arena arena(planned.arena_bytes);
  device::Pool pool(1);
  for (const comm::Operation fails : {comm::Operation::Send, comm::Operation::Receive}) {
    comm::RankFlight flight;
    FailingEnd end(flight, fails);
    Executor executor(program, planned, {arena.data()}, pool,
                      {[&](program::Group, const std::string&) { return &end; }, {}});
    try {
      executor.run({.in_order = true});
      ADD_FAILURE() << "no error";
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ExitCode::Numerical);
      EXPECT_NE(std::string(e.what()).find("planted"), std::string::npos) << e.what();
    }
    ASSERT_EQ(end.told.size(), 1u);
    EXPECT_NE(end.told[0].find("planted"), std::string::npos) << end.told[0];
  }
}

}  // namespace
}  // namespace pleat::interpret
