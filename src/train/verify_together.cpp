#include "train/verify_together.h"

#include "checkpoint/save_work.h"
#include "train/crew_peers.h"

namespace pleat::train {

void verify_together(const runtime::Crew& crew, base::Vfs& vfs,
                     const std::function<void(const checkpoint::Verify& verify)>& direct) {
  if (crew.alone()) return direct(checkpoint::verify_alone);
  CrewPeers peers(crew, "checkpoint.verify");
  const checkpoint::Team::Work work = [&](const std::string& order) {
    checkpoint::verify_as_ordered(vfs, order, peers.rank(), peers.size());
    return std::string();
  };
  checkpoint::Team team(peers, work);
  team.run([&] {
    direct([&](const checkpoint::Loaded& loaded) { team.all(checkpoint::order::verify(loaded)); });
    return std::string();
  });
}

}  // namespace pleat::train
