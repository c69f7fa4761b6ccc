// Memory before a run: every value's offset in the arena of its space, from its lifetime alone.
//
// Every space is planned by itself.
//
// Persistent values come first, in the order they are declared, so that programs which declare the same state
// (training, evaluation) agree on where it lies. Above them, two values share bytes only if every use of the
// one happens before every use of the other by data, lane or declared waits.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "program/order.h"
#include "program/program.h"

namespace pleat::interpret {

constexpr int64_t kArenaAlignment = 256;

// When a root value is alive.
struct Lifetime {
  bool used = false;
  bool from_start = false, to_end = false;  // alive before the first stage / after the last
  program::StageId first_in_list = -1, last_in_list = -1;
};

// Of every value, with its first and last use on every lane.
class Lifetimes {
 public:
  Lifetimes(const program::Program& program, const program::Order& order);
  const Lifetime& operator[](size_t value) const { return lives_[value]; }
  size_t size() const { return lives_.size(); }
  int num_lanes() const { return num_lanes_; }
  // -1: not used there.
  program::StageId first(size_t value, int lane) const { return first_[at(value, lane)]; }
  program::StageId last(size_t value, int lane) const { return last_[at(value, lane)]; }
  // Every use of a is finished before any use of b can start.
  bool ordered(const program::Order& order, size_t a, size_t b) const;

 private:
  void keep_for_passes(const program::Program& program);
  size_t at(size_t value, int lane) const {
    return value * static_cast<size_t>(num_lanes_) + static_cast<size_t>(lane);
  }
  int num_lanes_;
  std::vector<Lifetime> lives_;
  std::vector<program::StageId> first_, last_;
};

using OwnerBytes = std::array<int64_t, 8>;  // indexed by program::Owner

// What a program needs of one space.
struct SpacePlan {
  int64_t arena_bytes = 0;       // what a run allocates
  int64_t persistent_bytes = 0;  // of which at the start, alive across steps
  int64_t live_peak_bytes = 0;   // the most that is alive at one stage of the list: no plan can be smaller
  program::StageId peak_stage = -1;
  OwnerBytes at_peak{};       // live bytes at the peak stage by owner (persistent included)
  OwnerBytes total{};         // sum over all values by owner, shared or not
  std::vector<int64_t> live;  // live bytes at every stage
};

// Of the device; the other spaces stand beside it.
struct Plan : SpacePlan {
  std::vector<int64_t> offset;  // per value, bytes into the arena of its space; views included; -1: unused
  SpacePlan pinned, window;

  const SpacePlan& of(program::Space space) const {
    return space == program::Space::Device ? *this : space == program::Space::Pinned ? pinned : window;
  }
};

Plan plan(const program::Program& program);
// The two ways a plan is packed; plan() takes the first up to kMostValuesOneByOne values of the device. One by
// one: every value against every other, the tightest, with time that grows with the square of their number. In
// frames: what is kept from one turn to another together, what lives inside a turn packed once per kind of turn.
constexpr size_t kMostValuesOneByOne = 4096;
// Scratch up to this size (a library's for matrix products) has a place of its own, packed one by one.
constexpr int64_t kHotScratchBytes = int64_t{64} << 20;
enum class Packing : uint8_t { OneByOne, Frames };
Plan plan(const program::Program& program, Packing packing);
// The same where the order is known already.
Plan plan(const program::Program& program, const program::Order& order);
Plan plan(const program::Program& program, const program::Order& order, Packing packing);

}  // namespace pleat::interpret
