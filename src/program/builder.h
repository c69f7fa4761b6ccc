// Writes a program stage by stage. A block template reads as one line per stage: op, then its arguments in
// the order of ops.def, each read r(x), written w(y), transformed in place u(y), accumulated acc(g) or absent
// none().
#pragma once

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "program/program.h"
#include "program/step_values.h"
#include "program/value_name.h"

namespace pleat::program {

// Where the stages being written belong.
struct Place {
  int microbatch = -1, layer = -1, part = 0, chunk = 0;
};

// A step is written down stage by stage; what is past this is a mistake, found before it takes all memory.
inline constexpr int64_t kMaxStages = 2'000'000;

class Builder {
 public:
  explicit Builder(std::string name);

  int lane(const std::string& name, const std::string& resource);  // declares, or finds, a lane
  ValueId value(ValueName name, tensor::Dtype dtype, std::vector<int64_t> shape, Owner owner,
                Life life = Life::Step, Space space = Space::Device);
  // What the host writes before a run, and what it reads after one (program/step_values.h).
  template <class T, Of kOf, class... Index>
  ValueId input(const StepValue<T, kOf>& v, std::vector<int64_t> shape, Index... index) {
    return value(v.name(index...), dtype_of(v), std::move(shape), Owner::Inputs, Life::Input);
  }
  template <class T, Of kOf, class... Index>
  ValueId result(const StepValue<T, kOf>& v, std::vector<int64_t> shape, Index... index) {
    return value(v.name(index...), dtype_of(v), std::move(shape), Owner::Results, Life::Result);
  }
  // Rows [begin, begin + rows) of a value with at least one dimension; of its microbatch and layer.
  ValueId rows(ValueId of, int64_t begin, int64_t rows, const std::string& suffix);
  // `shape` of the bytes of a value that is no view itself, from element `begin` on.
  ValueId view(ValueId of, ValueName name, std::vector<int64_t> shape, int64_t begin);
  // A routed value: its row count is a budget.
  ValueId routed(ValueName name, tensor::Dtype dtype, std::vector<int64_t> shape, Owner owner,
                 int64_t expected, int64_t maximum, Space space = Space::Device);

  void at(Place place, int lane_idx = 0) { place_ = place, lane_ = lane_idx; }
  // The chunk of every stage written from now on, where its place names none.
  void in_chunk(int chunk) { chunk_ = chunk; }
  const Place& place() const { return place_; }
  int lane_idx() const { return lane_; }

  void forward(Op op, std::vector<Use> uses, AttrSet attrs = {}) {
    add(op, Phase::Forward, std::move(uses), std::move(attrs));
  }
  void dgrad(Op op, std::vector<Use> uses, AttrSet attrs = {}) {
    add(op, Phase::BackwardInput, std::move(uses), std::move(attrs));
  }
  void wgrad(Op op, std::vector<Use> uses, AttrSet attrs = {}) {
    add(op, Phase::BackwardWeight, std::move(uses), std::move(attrs));
  }
  void update(Op op, std::vector<Use> uses, AttrSet attrs = {}) {
    add(op, Phase::Update, std::move(uses), std::move(attrs));
  }

  // A stage of a group, or towards a neighbour in the pipeline; `chunk` tells apart what several chunks send.
  void exchange(Op op, Phase phase, Group group, std::vector<Use> uses, AttrSet attrs = {});
  void transfer(Op op, Phase phase, Peer peer, std::vector<Use> uses);

  // Overwrites the first time the program writes the value, accumulates afterwards: the first microbatch
  // needs no zeroing.
  Use acc(ValueId v) const;

  Program take() { return std::move(program_); }
  const Program& program() const { return program_; }

 private:
  void add(Op op, Phase phase, std::vector<Use> uses, AttrSet attrs);
  int32_t intern(AttrSet attrs);
  Program program_;
  std::unordered_multimap<uint64_t, int32_t> interned_;  // hash of a set -> its index
  std::vector<bool> written_;
  Place place_;
  int lane_ = 0, chunk_ = 0;
};

inline Use r(ValueId v) { return {v, Access::Read}; }
inline Use w(ValueId v) { return {v, Access::Write}; }
inline Use u(ValueId v) { return {v, Access::Update}; }
inline Use none() { return {kNoValue, Access::Read}; }

}  // namespace pleat::program
