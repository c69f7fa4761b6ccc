// Ranks as threads for tests of whole runs.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/local/local_world.h"
#include "runtime/crew.h"

namespace pleat::train::testing {

// The ranks of one layout, kept over several rounds of work.
class Ranks {
 public:
  Ranks(const config::Config& config, int num_ranks) : world_(num_ranks, options()) {
    crews_.resize(static_cast<size_t>(num_ranks));
    for (int r = 0; r < num_ranks; ++r) endpoints_.push_back(world_.endpoint(r));
    comm::run_ranks(world_, [&](int r) {
      const size_t i = static_cast<size_t>(r);
      crews_[i] = std::make_unique<runtime::Crew>(config, *endpoints_[i], 1);
    });
  }

  int size() const { return world_.size(); }
  // On a thread of each rank.
  void each(const std::function<void(runtime::Crew& crew)>& fn) {
    comm::run_ranks(world_, [&](int r) { fn(*crews_[static_cast<size_t>(r)]); });
  }

 private:
  static comm::Options options() {
    comm::Options o;
    o.check = true;
    o.timeout_seconds = 60;
    return o;
  }
  comm::LocalWorld world_;
  std::vector<std::unique_ptr<comm::Endpoint>> endpoints_;
  std::vector<std::unique_ptr<runtime::Crew>> crews_;
};

}  // namespace pleat::train::testing
