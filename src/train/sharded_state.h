// A run's state as logical tensors, whatever the layout: weights, moments and correction biases by the names
// and shapes one rank would give them. A checkpoint holds only these, so it belongs to no layout.
//
// Every element of the state has one owner. Of a weight and its moments it is the rank whose optimizer
// updates the element (model/shard.h, reduction_group); of a weight that lives at both ends of a pipeline,
// the end with the embedding; of a correction bias, the first rank of its stage.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/load.h"
#include "checkpoint/state.h"
#include "train/crew.h"
#include "train/programs.h"

namespace pleat::train {

// What of a parameter a logical tensor is.
enum class StateKind : uint8_t { Weight, Moment, Bias };

struct LogicalTensor {
  std::string name;
  tensor::Dtype dtype{};
  std::vector<int64_t> shape;
  StateKind kind{};
  int parameter_idx = -1;  // of the table; -1: a bias
  int layer = -1;          // of a bias
};

// All of a model, in ascending order of names.
std::vector<LogicalTensor> logical_tensors(const config::Config& config,
                                           const std::vector<model::Parameter>& table);

// Bytes of a logical tensor that lie on one rank, and where in the rank's own value of that name; in
// ascending order. Owned: only what this rank answers for.
enum class Which : bool { Held, Owned };
std::vector<checkpoint::Part> parts_on(const config::Config& config,
                                       const std::vector<model::Parameter>& table,
                                       const LogicalTensor& tensor, const RankSetup& rank, Which which);

class ShardedState {
 public:
  // Both outlive this.
  ShardedState(Programs& programs, const Crew& crew);

  // On the leader: calls `use` with the whole state, whose tensors are fetched from their owners piece by
  // piece as they are read. On the others: answers until the leader is done. When `use` throws, the leader
  // throws it on and the others return.
  void gather(const std::function<void(std::vector<checkpoint::TensorRef>)>& use);

  // Reads this rank's part. The checkpoint must have been verified by one rank of the run.
  void restore(const checkpoint::Loaded& loaded);

 private:
  void lead(const std::function<void(std::vector<checkpoint::TensorRef>)>& use);
  void serve();
  void fetch(size_t tensor_idx, int64_t begin, std::span<std::byte> out);
  const std::vector<checkpoint::Part>& owned_by(size_t tensor_idx, int rank);

  Programs& programs_;
  const Crew& crew_;
  std::vector<LogicalTensor> tensors_;
  std::vector<RankSetup> ranks_;  // on the leader all, on others this one
  // Of the tensor that was asked for last, by rank.
  size_t cached_idx_ = ~size_t{0};
  std::vector<std::vector<checkpoint::Part>> cached_;
  std::vector<std::byte> buffer_;
};

}  // namespace pleat::train
