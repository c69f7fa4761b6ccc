// What the thread ranks of one group share.
#pragma once

#include <functional>
#include <memory>

#include "comm/communicator.h"
#include "comm/local/barrier.h"
#include "comm/local/mailbox.h"
#include "comm/local/mover.h"

namespace pleat::comm::local {

struct Group {
  Group(std::string group_name, std::vector<int> world_ranks, Buffers where);

  void call_off();

  const std::string name;
  const std::vector<int> ranks;
  const Buffers buffers;
  // enter: all have posted, unless called off. leave: all have read; never called off, since by then no rank
  // waits for anything but copies.
  Barrier enter, leave;
  std::vector<const Call*> calls;
  std::vector<Signature> signatures;
  std::vector<Mailbox> mailboxes;
  std::vector<char> open;  // by member; guarded by the world
};

// What an end needs of its world.
struct WorldOfEnd {
  std::function<void(const std::string& here)> fail_aborted;  // throws why the world was called off
  std::function<void(const std::string& why)> abort;          // calls it off
  std::function<void()> closed;                               // runs at the end of the end's life
};

// One rank's end.
class GroupEnd : public Communicator {
 public:
  GroupEnd(std::shared_ptr<Group> group, int rank, RankFlight& flight, const Options& options,
           WorldOfEnd world);
  ~GroupEnd() override;

  void abort(const std::string& why) override { world_.abort(why); }

 private:
  void execute(const Call& call) override;
  void collective(const Call& call);
  void work(const Call& call);
  void message(const Call& call);
  [[noreturn]] void turned_away(const Call& call) const;

  std::shared_ptr<Group> group_;
  CompareStage compare_stage_;
  WorldOfEnd world_;
  std::unique_ptr<Mover> mover_;
};

}  // namespace pleat::comm::local
