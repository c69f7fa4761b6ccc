// Watches calls that do not end, and ranks that are gone: one table that says who waits for whom, then
// code 75.
//
// A thread that looks at the flight recorders a few times per time-out; it takes no part in communication, so
// it works while every rank is stuck. In a world of processes each watches its own calls and, on its own
// machine, whether the other processes still live; the first to find something writes the table for all. A
// rank that has failed and is still there a time-out later hangs somewhere outside of any call: that is a
// stall as well. Time in which this process itself was stopped counts for nobody.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "comm/flight.h"
#include "comm/options.h"

namespace pleat::comm {

class Watchdog {
 public:
  struct View {
    std::vector<const RankFlight*> flights;  // by world rank; null: on a machine whose memory is not seen
    std::vector<int> own;                    // ranks whose calls this process answers for
    bool processes = false;                  // ranks are processes: look whether the others live
    RankFlight* self = nullptr;              // then: of this process, which says why it ends
    std::atomic<uint32_t>* claim = nullptr;  // shared; whoever takes it first writes the table
    std::function<std::string(int rank)> remark = {};  // more about a rank, for the table; may be empty
    // What is known of a rank on another machine is old: it may have gone on since. May be empty.
    std::function<bool(int rank)> silent = {};
    // Tells other machines what `self` ends of, before it does. May be empty.
    std::function<void()> tell = {};
  };
  Watchdog(View view, Options options);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Members by world rank, so that the table can tell who is missing.
  void add_group(const std::string& name, std::span<const int> world_ranks);

  // The connection to this rank has ended before its run did. Any thread.
  void lose(int rank);

  // The table when a call of `own` has lasted longer than the time-out, "" when there is none.
  std::string find_stall(double timeout_seconds) const;
  // What every rank did last, one row per rank.
  std::string table() const;
  // Who waits for `rank`, which has failed or is gone, and where everybody is; "" when nobody waits and it
  // did not fail inside a call.
  std::string table_of_failure(int rank) const;

 private:
  struct Stuck {
    int rank = -1;
    FlightEntry entry;
  };
  void watch();
  std::string find_lost();
  bool ends_by_itself();
  std::string find_unended(double timeout_seconds);
  std::string table_without(size_t rank) const;  // as table_of_failure, but never empty
  std::optional<Stuck> waits_for(int rank) const;
  // Of all calls that have lasted that long, the one that tells most: in a pipeline receives are posted
  // ahead, so that the oldest call may be far from what is wrong.
  Stuck nearest_to_cause(Stuck best, double at_least_seconds) const;
  double waited(const FlightEntry& entry) const;
  bool is_gone(int rank) const;
  bool is_stopped(int rank) const;  // its process, by a signal
  // What it is recorded to wait in says where it was, not what it waits in now.
  bool is_still(int rank) const;
  std::vector<int> members_of(const Stuck& stuck) const;
  std::string rows(const std::optional<Stuck>& stuck) const;
  // "" unless groups are being opened: then one line with who has not come.
  std::string not_come(const Stuck& stuck) const;
  std::string own_calls() const;  // one line for each that is under way
  void report(const std::string& table);

  View view_;
  Options options_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  int64_t failed_seen_ns_ = 0, own_failed_seen_ns_ = 0;
  // Time before this counts for no call: when this process last went on after having been stopped, or was asked to
  // stop without a time-out.
  std::atomic<int64_t> continued_ns_{0};
  std::vector<char> seen_alive_;  // by world rank; a process in another container may not be seen at all
  std::unique_ptr<std::atomic<bool>[]> lost_;  // by world rank
  std::map<uint64_t, std::vector<int>> groups_;
  std::thread thread_;
};

}  // namespace pleat::comm
