// Signs of life between machines: what a rank did last, sent to the ranks that cannot see its flight recorder.
//
// A process that is stopped or a machine that is gone sends none; what was kept of it is then the last that is known.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/flight.h"

namespace pleat::comm::tcp {

class Mesh;

// The recorders of all ranks of other machines, as far as they have told.
class Mirrors {
 public:
  explicit Mirrors(const std::vector<std::string>& hosts, int rank);
  bool is_far(int rank) const { return flights_[static_cast<size_t>(rank)] != nullptr; }
  RankFlight* flight(int rank) { return flights_[static_cast<size_t>(rank)].get(); }
  // What `Pulse` of that rank sent.
  void take(int rank, std::span<const std::byte> note);
  // Whether it has not been heard for so long that it may be stopped or cut off.
  bool is_silent(int rank) const;
  // "no sign of life for 12.3 s", or nothing.
  std::string silence(int rank) const;

 private:
  double seconds_silent(int rank) const;

  std::vector<std::unique_ptr<RankFlight>> flights_;  // by rank; none for ranks of this machine
  std::unique_ptr<std::atomic<int64_t>[]> heard_ns_;
};

class Pulse {
 public:
  // To every rank that is far, a few times a second. `own` and `mesh` outlive this.
  Pulse(Mesh& mesh, const RankFlight& own, std::vector<int> to);
  ~Pulse();
  Pulse(const Pulse&) = delete;
  Pulse& operator=(const Pulse&) = delete;
  void beat();  // at once; waits where a connection takes nothing
  // Has its own thread do so, and waits no longer than that: of a process that ends, whatever its connections do.
  void last_beat(double seconds);

 private:
  Mesh& mesh_;
  const RankFlight& own_;
  std::vector<int> to_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  int asked_ = 0, beaten_ = 0;
  std::thread thread_;
};

}  // namespace pleat::comm::tcp
