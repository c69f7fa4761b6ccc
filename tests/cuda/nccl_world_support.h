// NCCL ranks that are processes, for tests: all of them may lie on one GPU where the library allows it.
//
// A test starts its own program once per rank with another test as what the rank does (CUDA may not be forked). The
// ranks meet as those of a run do (comm/process/run_rank.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace pleat::testing {

// Why there cannot be several NCCL ranks on the one GPU; "": there can.
std::string no_nccl_ranks();

struct NcclEnded {
  std::vector<int> codes;         // by rank; -1: a signal
  std::vector<std::string> said;  // output and errors
  double seconds_to_first = 0;    // from their start until the first of them ended by itself
};
// What `rank_test` (NAME of NcclRank.DISABLED_NAME) does on each of `size` ranks; `argument` reaches it. A rank that has
// not ended `seconds` later is killed, and one that has not ended `after_first` seconds after the first that did.
NcclEnded run_nccl_ranks(const std::string& folder, int size, const std::string& rank_test,
                         const std::string& argument = "", double seconds = 120, double after_first = 120);

// Inside such a test.
struct NcclRank {
  std::string folder, argument;
  static bool is_one();  // whether this process is one
  // As the environment says. The process ends with the code of an error, as the program's own would.
  static void run(double timeout_seconds, const std::function<void(comm::Endpoint&, const NcclRank&)>& fn);
  static void run(const comm::Options& options,
                  const std::function<void(comm::Endpoint&, const NcclRank&)>& fn);
  static std::string given();  // the argument
};

// A group of host buffers that are staged on the device, so that the cases of every carrier reach NCCL.
class StagedNccl {
 public:
  StagedNccl(comm::Endpoint& endpoint, const std::string& name, std::span<const int> ranks);
  ~StagedNccl();
  comm::Communicator& group() { return *outer_; }
  comm::Communicator& enqueued();  // the group on the device
  // For ranks that are in none of the groups the others open.
  static void stand_aside(comm::Endpoint& endpoint);
  // At the end: nobody ends its group while another is still in a call of it.
  void wait_for_all();

 private:
  struct Inside;
  std::unique_ptr<comm::Communicator> host_;
  std::unique_ptr<Inside> inside_;
  std::unique_ptr<comm::Communicator> outer_;
};

}  // namespace pleat::testing
