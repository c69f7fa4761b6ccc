// The ranks of a run as those that work on one checkpoint.
#pragma once

#include "checkpoint/team.h"
#include "runtime/crew.h"

namespace pleat::train {

class CrewPeers : public checkpoint::Peers {
 public:
  // `crew` outlives this. `stage` names the exchanges, for whoever waits in one.
  CrewPeers(const runtime::Crew& crew, const char* stage) : crew_(crew), stage_(stage) {}
  int rank() const override { return crew_.setup().rank(); }
  int size() const override { return crew_.setup().world(); }
  std::string tell(const std::string& text) override { return crew_.tell(stage_, text); }
  std::vector<std::string> gather(const std::string& text) override;

 private:
  const runtime::Crew& crew_;
  const char* stage_;
};

}  // namespace pleat::train
