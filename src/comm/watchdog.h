// Watches calls that do not end, and ranks that are gone: one table that says who waits for whom, then
// code 75.
//
// A thread that looks at the flight recorders a few times per time-out; it takes no part in communication, so
// it works while every rank is stuck. In a world of processes each watches its own calls and, on its own
// machine, whether the other processes still live; the first to find something writes the table for all.
#pragma once

#include <condition_variable>
#include <map>
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
    std::atomic<uint32_t>* claim = nullptr;  // shared; whoever takes it first writes the table
  };
  Watchdog(View view, Options options);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Members by world rank, so that the table can tell who is missing.
  void add_group(const std::string& name, std::span<const int> world_ranks);

  // The table for the longest call of `own` that has lasted longer than the time-out, "" when there is none.
  std::string find_stall(double timeout_seconds) const;
  // What every rank did last, one row per rank.
  std::string table() const;

 private:
  struct Stuck {
    int rank = -1;
    FlightEntry entry;
  };
  void watch();
  std::string find_lost();
  bool is_gone(int rank) const;
  std::string rows(const std::optional<Stuck>& stuck) const;
  void report(const std::string& table);

  View view_;
  Options options_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  int64_t failed_seen_ns_ = 0;
  std::vector<char> seen_alive_;  // by world rank; a process in another container may not be seen at all
  std::map<uint64_t, std::vector<int>> groups_;
  std::thread thread_;
};

}  // namespace pleat::comm
