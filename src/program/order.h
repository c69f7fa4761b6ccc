// The order a program states: which stages must come before which, by data and by lane.
//
// Data edges come from the uses alone: a read after the write it sees, a write after the reads it would
// destroy, updates of one value as a chain in program order. Views count by the bytes they cover. A stage may
// declare more stages to wait for (Stage::after), and all lanes meet where stages that are repeated begin and
// end (program/repeat.h). Position in the list orders two stages only on the same lane.
#pragma once

#include <span>
#include <vector>

#include "program/program.h"

namespace pleat::program {

// For every stage, the earlier stages it must wait for, in one list.
class EdgeList {
 public:
  std::span<const StageId> operator[](size_t stage) const {
    return {from_.data() + begin_[stage], from_.data() + begin_[stage + 1]};
  }
  size_t size() const { return begin_.size() - 1; }

 private:
  friend EdgeList edge_list(const Program& program);
  std::vector<size_t> begin_{0};
  std::vector<StageId> from_;
};
EdgeList edge_list(const Program& program);

// The same as lists of their own: the earlier stages a stage must wait for by data or declaration (ascending,
// no duplicates; not transitively closed).
std::vector<std::vector<StageId>> data_edges(const Program& program);

// Happens-before over data edges and lane order, as one vector clock per stage.
class Order {
 public:
  explicit Order(const Program& program);
  Order(const Program& program, const EdgeList& edges);
  // True when a is finished before b can start, whatever the timing.
  bool before(StageId a, StageId b) const;
  int num_lanes() const { return num_lanes_; }
  int lane_of(StageId s) const { return lane_[static_cast<size_t>(s)]; }
  int position_on_lane(StageId s) const { return position_[static_cast<size_t>(s)]; }
  // The highest lane position of `lane` known finished when s starts; -1: none.
  int clock(StageId s, int lane) const {
    return clock_[static_cast<size_t>(s) * static_cast<size_t>(num_lanes_) + static_cast<size_t>(lane)];
  }

 private:
  int num_lanes_;
  std::vector<int> lane_, position_, clock_;
};

}  // namespace pleat::program
