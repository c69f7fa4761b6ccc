#include "comm/local/local_world.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "comm/local/local_group.h"
#include "comm/watchdog.h"

namespace pleat::comm {

struct LocalWorld::State {
  State(int num_ranks, const Options& chosen)
      : size(num_ranks), options(chosen), flights(new RankFlight[static_cast<size_t>(num_ranks)]()) {
    Watchdog::View view;
    for (int r = 0; r < size; ++r) {
      flights[static_cast<size_t>(r)].start(getpid());
      view.flights.push_back(&flights[static_cast<size_t>(r)]);
      view.own.push_back(r);
    }
    watchdog = std::make_unique<Watchdog>(std::move(view), options);
  }

  [[noreturn]] void fail_aborted(const std::string& here) {
    const std::lock_guard lock(mutex);
    base::fail_with(base::ExitCode::Retry, "rank {} failed ({}); {} was waiting for it or for one that was",
                    culprit, why, here);
  }

  const int size;
  const Options options;
  std::unique_ptr<RankFlight[]> flights;
  std::mutex mutex;
  std::vector<std::shared_ptr<local::Group>> groups;
  bool aborted = false;
  int culprit = -1;
  std::string why;
  std::unique_ptr<Watchdog> watchdog;  // last: it reads the flights
};

LocalWorld::LocalWorld(int size, Options options) {
  if (size < 1) base::fail("a world of {} ranks; needed 1 or more", size);
  state_ = std::make_shared<State>(size, options);
}

// Ends the watchdog here, even when an end of a group outlives the world.
LocalWorld::~LocalWorld() { state_->watchdog.reset(); }

int LocalWorld::size() const { return state_->size; }

std::string LocalWorld::flight_table() const { return state_->watchdog->table(); }

std::unique_ptr<Communicator> LocalWorld::group(const std::string& name, std::span<const int> ranks,
                                                int my_rank) {
  const auto found = std::find(ranks.begin(), ranks.end(), my_rank);
  if (found == ranks.end())
    base::fail("group '{}' of ranks {} does not contain rank {}, which asks for it", name,
               fmt::join(ranks, " "), my_rank);
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= size() ||
        std::find(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(i), ranks[i]) !=
            ranks.begin() + static_cast<std::ptrdiff_t>(i))
      base::fail("group '{}' of ranks {}: rank {} is there twice or not in the world of {}", name,
                 fmt::join(ranks, " "), ranks[i], size());
  }
  const auto member = static_cast<size_t>(found - ranks.begin());
  const std::shared_ptr<State> state = state_;
  const std::lock_guard lock(state->mutex);
  std::shared_ptr<local::Group> group;
  for (const auto& g : state->groups) {
    if (g->name != name) continue;
    if (std::equal(g->ranks.begin(), g->ranks.end(), ranks.begin(), ranks.end())) {
      group = g;
    } else if (std::find_first_of(ranks.begin(), ranks.end(), g->ranks.begin(), g->ranks.end()) !=
               ranks.end()) {
      base::fail("group '{}': rank {} says ranks {}, another rank said {}", name, my_rank,
                 fmt::join(ranks, " "), fmt::join(g->ranks, " "));
    }
  }
  if (!group) {
    group = std::make_shared<local::Group>(name, std::vector<int>(ranks.begin(), ranks.end()));
    if (state->aborted) group->call_off();
    state->groups.push_back(group);
    state->watchdog->add_group(name, ranks);
  }
  if (group->open[member] != 0) base::fail("group '{}': rank {} has it open already", name, my_rank);
  group->open[member] = 1;
  return std::make_unique<local::GroupEnd>(
      group, static_cast<int>(member), state->flights[static_cast<size_t>(my_rank)],
      state->options.check ? CompareStage::Yes : CompareStage::No,
      [state](const std::string& here) { state->fail_aborted(here); },
      [state, group, member] {
        const std::lock_guard closing(state->mutex);
        group->open[member] = 0;
      });
}

bool LocalWorld::abort(int culprit, const std::string& why) {
  const std::lock_guard lock(state_->mutex);
  if (state_->aborted) return false;
  state_->aborted = true;
  state_->culprit = culprit;
  state_->why = why;
  if (culprit >= 0 && culprit < state_->size) state_->flights[static_cast<size_t>(culprit)].fail(why);
  for (const auto& group : state_->groups) group->call_off();
  return true;
}

namespace {

class LocalEndpoint : public Endpoint {
 public:
  LocalEndpoint(LocalWorld& world, int rank) : world_(world), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return world_.size(); }
  std::unique_ptr<Communicator> group(const std::string& name, std::span<const int> ranks) override {
    return world_.group(name, ranks, rank_);
  }

 private:
  LocalWorld& world_;
  int rank_;
};

}  // namespace

std::unique_ptr<Endpoint> LocalWorld::endpoint(int rank) {
  if (rank < 0 || rank >= size()) base::fail("rank {} is not in the world of {}", rank, size());
  return std::make_unique<LocalEndpoint>(*this, rank);
}

void run_ranks(LocalWorld& world, const std::function<void(int rank)>& fn) {
  base::ExitCode code{};
  std::string message;
  bool failed = false;  // these three are written by the first culprit only, read after the join
  const auto ended_by = [&](int rank, base::ExitCode its_code, const std::string& what) {
    if (!world.abort(rank, what)) return;
    failed = true;
    code = its_code;
    message = fmt::format("rank {}: {}", rank, what);
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        fn(rank);
      } catch (const base::Error& e) {
        ended_by(rank, e.code(), e.what());
      } catch (const std::exception& e) {
        ended_by(rank, base::ExitCode::Internal, e.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failed) throw base::Error(code, message);
}

}  // namespace pleat::comm
