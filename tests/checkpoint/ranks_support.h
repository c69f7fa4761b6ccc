// Ranks that save together, as threads of which one runs at a time and hands on only where it must wait for another:
// the simulated disk sees the same operations in the same order every time.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_support.h"
#include "checkpoint/share.h"
#include "checkpoint/team.h"

namespace pleat::checkpoint {

// Runs `main` on every rank; returns what each threw. A rank that ends with an exception is lost to the others: who
// waits for it throws base::Error (Retry), or PowerLoss where that was it.
std::vector<std::exception_ptr> run_ranks(int num_ranks, const std::function<void(Peers&)>& main);

// The rank that runs, in a thread of run_ranks.
int running_rank();

// A TestState cut over ranks in every way a tensor can be: by columns, by pieces that end inside rows, whole tensors
// here and there. A rank's memory holds its own bytes alone, in an order of its own.
class SplitState {
 public:
  SplitState(const TestState& state, int num_ranks);
  const Share& share(int rank) const { return shares_[static_cast<size_t>(rank)]; }

 private:
  std::vector<Share> shares_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> memory_;
};

// The save of all ranks; throws what the first rank threw, after making sure that all have thrown the same.
SaveResult save_together(base::Vfs& vfs, const std::string& directory, const TestState& state, int num_ranks,
                         const SaveOptions& options = small_options());

}  // namespace pleat::checkpoint
