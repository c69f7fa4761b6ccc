// A run's state as logical tensors, whatever the layout: weights, their states and correction biases by the names
// and shapes one rank would give them. A checkpoint holds only these, so it belongs to no layout.
//
// Every element of the state has one owner. Of a weight and its states it is the first rank whose optimizer
// updates the element (model/shard.h, ownership); of a weight that lives at both ends of a pipeline,
// the end with the embedding; of a correction bias, the first rank of its stage.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/load.h"
#include "checkpoint/share.h"
#include "checkpoint/state.h"
#include "runtime/crew.h"
#include "runtime/programs.h"

namespace pleat::train {

// What of a parameter a logical tensor is. Share: a state of the optimizer, which lies on its owners.
enum class StateKind : uint8_t { Weight, Share, Bias };

struct LogicalTensor {
  std::string name;
  tensor::Dtype dtype{};
  std::vector<int64_t> shape;
  StateKind kind{};
  int parameter_idx = -1;  // of the table; -1: a bias
  int layer = -1;          // of a bias
  int64_t span = 1;        // elements of the parameter that a number belongs to (model/state.h)
};

// All of a model, in ascending order of names.
std::vector<LogicalTensor> logical_tensors(const config::Config& config,
                                           const std::vector<model::Parameter>& table);

// Bytes of a logical tensor that lie on one rank, and where in the rank's own value of that name; in
// ascending order. Owned: only what this rank answers for.
enum class Which : bool { Held, Owned };
std::vector<checkpoint::Part> parts_on(const config::Config& config,
                                       const std::vector<model::Parameter>& table,
                                       const LogicalTensor& tensor, const runtime::RankSetup& rank,
                                       Which which);

class ShardedState {
 public:
  // Both outlive this.
  ShardedState(runtime::Programs& programs, const runtime::Crew& crew);

  // For what needs the state in the order of one rank, its digest: a save does not (share).
  // On the leader: calls `use` with the whole state, whose tensors are fetched from their owners piece by
  // piece as they are read, a few MiB at a time. On the others: answers until the leader is done. When `use`
  // throws, the leader throws it on and the others return.
  void gather(const std::function<void(std::vector<checkpoint::TensorRef>)>& use);

  // What this rank brings to a checkpoint: it and the programs outlive the result, and nothing trains meanwhile.
  std::vector<checkpoint::ShareTensor> share();

  // Reads this rank's part and no other. The ranks of the run must have verified the checkpoint together.
  void restore(const checkpoint::Loaded& loaded);

 private:
  // Bytes of a window of the stream that one rank answers for: in stream order, one after the other.
  struct Copy {
    int64_t window_begin = 0, count = 0;
    size_t tensor_idx = 0;
    int64_t value_begin = 0;  // in the rank's value
  };
  std::vector<Copy> copies(const runtime::RankSetup& rank, int64_t begin, int64_t count) const;
  void read_own(const Copy& copy, std::span<std::byte> out) const;

  class Gathered;
  void lead(const std::function<void(std::vector<checkpoint::TensorRef>)>& use);
  void serve();
  // Those of the stream from `begin` on that were fetched together.
  std::span<const std::byte> at(int64_t begin);
  void fetch(int64_t begin, int64_t count);

  runtime::Programs& programs_;
  const runtime::Crew& crew_;
  std::vector<LogicalTensor> tensors_;
  std::vector<int64_t> offsets_;           // of the tensors in the stream of all, and its end
  std::vector<runtime::RankSetup> ranks_;  // on the leader all, on others this one
  // The part of the stream that was fetched last: small tensors come many at a time.
  int64_t window_begin_ = 0;
  std::vector<std::byte> window_, buffer_;
};

}  // namespace pleat::train
