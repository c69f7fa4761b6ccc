// Groups whose calls are enqueued, whatever device runs them: keeps which of them are under way, shows the
// oldest in the flight recorder, and turns a failure of the device's library into an error that names the call.
//
// A device does the calls of a group in order, so the oldest that is not done is what this rank waits in. It
// counts as started when the one before it is done: a time-out (watchdog.h) measures waiting for others, not
// how far the host runs ahead.
#pragma once

#include <mutex>

#include "comm/communicator.h"

namespace pleat::comm {

class EnqueuedCommunicator : public Communicator {
 public:
  program::Meeting meeting() const final { return program::Meeting::OnDevice; }
  bool watch() final;
  int captured() final;
  void launched(int captured) final;
  // Check mode: from now on the members compare each collective over `host`, which has the same members, before it is
  // put on the stream. Calls that are captured into a graph are not: the run before the capture made the same ones.
  void compare_over(std::unique_ptr<Communicator> host) { host_ = std::move(host); }

 protected:
  using Communicator::Communicator;

  // execute() puts a call on the stream, and behind it a mark that this counts: calls the device has done, those
  // of a graph each time it runs. Any thread.
  virtual uint64_t num_done() const = 0;
  virtual bool capturing() const = 0;  // whether the stream is
  virtual std::string fault() = 0;     // why no call will be done any more; "": none. Any thread

 private:
  void record(const Call& call, const FlightEntry& entry) final;
  void settle();
  void show_oldest();
  [[noreturn]] void fail(const std::string& why);

  std::unique_ptr<Communicator> host_;  // where calls are compared; none: they are not
  std::mutex mutex_;
  std::vector<FlightEntry> under_way_;  // oldest first, from first_ on
  size_t first_ = 0;
  uint64_t num_settled_ = 0;  // calls that have left under_way_
  int slot_ = -1;             // of the oldest, in the recorder
  std::vector<FlightEntry> captured_;
  std::vector<std::vector<FlightEntry>> graphs_;
};

}  // namespace pleat::comm
