// NCCL ranks that are processes, for tests: all of them may lie on one GPU where the library allows it.
//
// A test starts its own program once per rank with another test as what the rank does (CUDA may not be forked).
// Ranks meet over a folder: ids of groups are files, the flight recorders lie in a file that all have mapped.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/watchdog.h"
#include "device/cuda/cuda.h"

namespace pleat::testing {

// Why there cannot be several NCCL ranks on the one GPU; "": there can.
std::string no_nccl_ranks();

struct NcclEnded {
  std::vector<int> codes;         // by rank; -1: a signal
  std::vector<std::string> said;  // output and errors
};
// What `rank_test` (NAME of NcclRank.DISABLED_NAME) does on each of `size` ranks; `argument` reaches it. A rank that has
// not ended `seconds` later is killed.
NcclEnded run_nccl_ranks(const std::string& folder, int size, const std::string& rank_test,
                         const std::string& argument = "", double seconds = 120);

// Inside such a test.
class NcclRank : public comm::Endpoint {
 public:
  explicit NcclRank(double timeout_seconds);  // as the environment says
  static bool is_one();                       // whether it says anything
  ~NcclRank() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::string& folder() const { return folder_; }
  const std::string& argument() const { return argument_; }
  // At the end, when this rank's calls are done: nobody goes while another may still read its memory.
  void wait_for_all();

  // Host buffers are staged on the device.
  std::unique_ptr<comm::Communicator> group(const std::string& name, std::span<const int> ranks,
                                            comm::Buffers buffers, void* stream) override;
  program::Meeting meeting(comm::Buffers buffers) const override {
    return buffers == comm::Buffers::Device ? program::Meeting::OnDevice : program::Meeting::OnHost;
  }

 private:
  struct Board;
  std::string folder_, argument_;
  int rank_ = 0, size_ = 1;
  Board* board_ = nullptr;
  std::map<std::string, int> num_opened_;
  std::vector<std::unique_ptr<device::cuda::Lane>> lanes_;
  std::vector<std::unique_ptr<comm::Communicator>> inner_;
  comm::RankFlight staged_;
  std::unique_ptr<comm::Watchdog> watchdog_;
};

}  // namespace pleat::testing
