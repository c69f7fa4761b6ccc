// A small state with every kind of content, and the oracles all checkpoint tests share.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/sim_vfs.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"

namespace pleat::checkpoint {

// Owns the memory a StateView points to. Different steps hold different bytes everywhere.
class TestState {
 public:
  explicit TestState(int64_t step, int64_t scale = 1);
  StateView view() const;
  std::string digest() const { return state_sha256(view()); }

  struct Tensor {
    std::string name;
    tensor::Dtype dtype;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
  };
  std::vector<Tensor> tensors;

 private:
  int64_t step_;
};

// Small blocks and shards: about three shards of four blocks for a TestState of scale 1.
SaveOptions small_options();

// Memory to restore into, filled with a pattern that shows any change.
class Targets {
 public:
  explicit Targets(const TestState& like);
  std::vector<Target> list();
  bool untouched() const;
  bool equals(const TestState& state) const;

 private:
  std::vector<TestState::Tensor> tensors_;
};

// The message of the base::Error that `action` throws; fails the test when there is none.
struct Thrown {
  std::string message;
  base::ExitCode code = base::ExitCode::Done;
};
Thrown thrown_by(const std::function<void()>& action);

// Empty when the disk is as it must be after any fault: every visible step-N verifies and holds exactly the
// state `expected` gives for its step, and the newest is one of `allowed`. Else what is wrong.
std::string breach(base::Vfs& vfs, const std::string& directory,
                   const std::map<int64_t, std::string>& expected_digests,
                   const std::vector<int64_t>& allowed);

}  // namespace pleat::checkpoint
