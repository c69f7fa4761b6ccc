// The flight recorder: the last calls of each rank, readable while the rank is stuck.
//
// Plain lock-free memory without pointers, valid when zero-filled: it lies on the heap for thread ranks and
// in memory shared between processes for MPI, where a stopped process can take no lock and answer no
// question. A slot is written by one thread and read by any; a version number tells a reader that it saw a
// mixture.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/call.h"

namespace pleat::comm {

enum class FlightState : uint8_t { Empty, InFlight, Done, Failed };

// The group of a rank that has come to the end of its run and waits for the others.
inline constexpr const char* kClosing = "world (closing)";

// What the stage of a call begins with in which ranks come together to open groups.
inline constexpr const char* kOpening = "opening";

// One recorded call. Texts are cut to what fits.
struct FlightEntry {
  static constexpr size_t kGroupBytes = 32, kStageBytes = 96;
  uint64_t order = 0;  // counts this rank's calls over all groups
  uint64_t group_hash = 0;
  uint64_t sequence = 0;  // collectives of a group and messages of a group are counted apart
  uint64_t shape_hash = 0;
  int64_t bytes = 0;
  // Steady clock, the same for all processes of a machine. An enqueued call starts when those before it in its
  // group are done; 0: it is not enqueued.
  int64_t enqueued_ns = 0, started_ns = 0, ended_ns = 0;
  int32_t peer = -1, from = -1;  // world ranks
  int32_t tag = 0;               // of a message
  FlightState state = FlightState::Empty;
  Operation operation{};
  tensor::Dtype dtype{};
  Reduce reduce{};
  char group[kGroupBytes] = {};
  char stage[kStageBytes] = {};
};

enum class RankState : int32_t { NotStarted, Running, Failed, Left };

class RankFlight {
 public:
  static constexpr int kNumEntries = 64;

  // Returns the slot to end; slots of calls still in flight are never reused.
  int begin(FlightEntry entry);
  void end(int slot, FlightState state);

  // Takes over what a rank of another machine has told of its last calls. One thread.
  void mirror(RankState state, const std::string& why, std::span<const FlightEntry> entries);

  // Entries that were not being written, newest first.
  std::vector<FlightEntry> entries() const;

  void start(int32_t process);
  void fail(const std::string& why);  // the first reason is kept
  void leave();
  RankState state() const { return static_cast<RankState>(state_.load(std::memory_order_acquire)); }
  int32_t process() const { return process_.load(std::memory_order_relaxed); }
  std::string why_failed() const;
  bool failed_in_call() const;  // a recorded call ended in an error

 private:
  static constexpr size_t kWords = (sizeof(FlightEntry) + 7) / 8;
  struct Slot {
    std::atomic<uint32_t> busy, version;
    std::atomic<uint64_t> words[kWords];
  };
  void store(Slot& slot, const FlightEntry& entry);
  static bool load(const Slot& slot, FlightEntry& entry);

  std::atomic<int32_t> process_, state_;
  std::atomic<uint64_t> next_;
  std::atomic<uint32_t> why_length_;
  std::atomic<char> why_[256];
  Slot slots_[kNumEntries];
};

int64_t steady_ns();

}  // namespace pleat::comm
