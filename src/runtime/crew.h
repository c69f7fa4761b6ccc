// One rank among the ranks of a run: who it is, the groups its programs talk over, and the few words the
// loop itself exchanges. Alone, every call is the answer for one rank.
//
// All ranks make the same calls in the same order. Groups are made in one fixed order on every rank: over MPI
// making one waits for its members.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/windows/windows.h"
#include "kernels/invocation.h"
#include "runtime/rank_setup.h"

namespace pleat::runtime {

class Crew {
 public:
  explicit Crew(const config::Config& config);  // alone, with device.threads workers
  // `endpoint` outlives this. `num_threads`: workers of this rank.
  Crew(const config::Config& config, comm::Endpoint& endpoint, int num_threads);
  Crew(RankSetup setup, comm::Endpoint& endpoint, int num_threads);

  const RankSetup& setup() const { return setup_; }
  bool alone() const { return !endpoint_; }
  int num_in_process() const { return endpoint_ ? endpoint_->num_in_process() : 1; }
  bool leads() const { return setup_.rank() == 0; }
  int num_threads() const { return num_threads_; }

  using Lane = std::pair<program::Group, std::string>;
  // Makes what is missing, for buffers that lie there; then `group` finds it. Groups whose calls are enqueued belong to
  // the streams of these lanes, and are made anew each time; all ranks call this together for them, each with the
  // lanes of its own programs.
  void open_groups(const std::set<Lane>& lanes, comm::Buffers buffers,
                   const std::function<void*(const std::string& lane)>& stream_of);
  // How the ranks of this run meet: one answer for all groups with such buffers.
  program::Meeting meeting(comm::Buffers buffers) const {
    return endpoint_ ? endpoint_->meeting(buffers) : program::Meeting::OnHost;
  }
  comm::Communicator* group(program::Group group, const std::string& lane) const;
  // How rows shall reach experts: as the layout says, or counted where ranks that share experts do not reach each other's
  // memory. All ranks get one answer. Windows that were asked for by name and cannot be are an error.
  model::RowExchange row_exchange(comm::Buffers buffers, bool by_name) const;
  // Memory of this rank that the others of its group will write; `windows` finds theirs.
  void share_windows(program::Group group, comm::Buffers buffers, const std::shared_ptr<std::byte>& memory);
  kernels::Windows windows(program::Group group) const;
  // Memory of the GPU that the carrier has taken for the groups of this rank, measured; empty where it takes none.
  struct TakenMemory {
    std::string group;
    int64_t bytes = 0;
  };
  std::vector<TakenMemory> device_memory_of_groups() const;

  void sum(const char* stage, std::span<int64_t> values) const;
  void sum(const char* stage, std::span<double> values) const;
  // Over the stages of this rank's pipeline.
  void sum_stages(const char* stage, std::span<double> values) const;
  int64_t smallest(const char* stage, int64_t value) const;
  bool any(const char* stage, bool mine) const;
  void tell(const char* stage, std::span<int64_t> values, int from = 0) const;
  std::string tell(const char* stage, const std::string& text, int from = 0) const;
  void wait_for_all(const char* stage) const;

  // Bytes to and from the leader.
  void send_to_leader(const char* stage, std::span<const std::byte> bytes) const;
  void receive_from(const char* stage, int rank, std::span<std::byte> bytes) const;

 private:
  comm::Endpoint* endpoint_ = nullptr;
  RankSetup setup_;
  int num_threads_ = 1;
  std::unique_ptr<comm::Communicator> world_, pipeline_;
  std::map<Lane, std::unique_ptr<comm::Communicator>> groups_;
  std::vector<std::pair<Lane, std::unique_ptr<comm::Communicator>>> earlier_;  // of streams before
  struct GroupWindows {
    program::Group group{};
    std::unique_ptr<comm::SharedWindows> shared;
    std::vector<std::byte*> begin;  // of each rank's, behind the header
  };
  std::vector<std::unique_ptr<GroupWindows>> windows_;  // the last is in use
};

}  // namespace pleat::runtime
