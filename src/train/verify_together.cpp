#include "train/verify_together.h"

#include "train/crew_peers.h"

namespace pleat::train {

void verify_together(const runtime::Crew& crew, base::Vfs& vfs,
                     const std::function<void(const checkpoint::Verify& verify)>& direct) {
  if (crew.alone()) return direct(checkpoint::verify_alone);
  CrewPeers peers(crew, "checkpoint.verify");
  const checkpoint::Team::Work work = [&](const std::string& path) {
    const checkpoint::Loaded loaded = checkpoint::open(vfs, path);
    loaded.verify(checkpoint::range_for(loaded.manifest(), peers.rank(), peers.size()));
    return std::string();
  };
  checkpoint::Team team(peers, work);
  team.run([&] {
    direct([&](const checkpoint::Loaded& loaded) { team.all(loaded.path()); });
    return std::string();
  });
}

}  // namespace pleat::train
