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
#include "comm/windows/windows.h"

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

  bool abort(int rank, const std::string& reason) {
    const std::lock_guard lock(mutex);
    if (aborted) return false;
    aborted = true;
    culprit = rank;
    why = reason;
    if (rank >= 0 && rank < size) {
      flights[static_cast<size_t>(rank)].fail(reason);
      table = watchdog->table_of_failure(rank);
      failed_in_call = flights[static_cast<size_t>(rank)].failed_in_call();
    }
    for (const auto& group : groups) group->call_off();
    return true;
  }

  const int size;
  const Options options;
  std::unique_ptr<RankFlight[]> flights;
  std::mutex mutex;
  std::vector<std::shared_ptr<local::Group>> groups;
  bool aborted = false, failed_in_call = false;
  int culprit = -1;
  std::string why, table;              // the table as it was before the others were woken
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
                                                int my_rank, Buffers buffers) {
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
    group = std::make_shared<local::Group>(name, std::vector<int>(ranks.begin(), ranks.end()), buffers);
    if (state->aborted) group->call_off();
    state->groups.push_back(group);
    state->watchdog->add_group(name, ranks);
  }
  if (group->buffers != buffers)
    base::fail("group '{}': rank {} has its buffers {}, another rank said otherwise", name, my_rank,
               buffers == Buffers::Device ? "on the device" : "in host memory");
  if (group->open[member] != 0) base::fail("group '{}': rank {} has it open already", name, my_rank);
  auto end = std::make_unique<local::GroupEnd>(
      group, static_cast<int>(member), state->flights[static_cast<size_t>(my_rank)], state->options,
      local::WorldOfEnd{[state](const std::string& here) { state->fail_aborted(here); },
                        [state, my_rank](const std::string& why) { state->abort(my_rank, why); },
                        [state, group, member] {
                          const std::lock_guard closing(state->mutex);
                          group->open[member] = 0;
                        }});
  group->open[member] = 1;
  return end;
}

bool LocalWorld::abort(int culprit, const std::string& why) { return state_->abort(culprit, why); }

namespace {

class LocalEndpoint : public Endpoint {
 public:
  LocalEndpoint(LocalWorld& world, int rank) : world_(world), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return world_.size(); }
  int num_in_process() const override { return world_.size(); }
  std::unique_ptr<Communicator> group(const std::string& name, std::span<const int> ranks, Buffers buffers,
                                      void*) override {
    return world_.group(name, ranks, rank_, buffers);
  }
  std::string why_no_windows(std::span<const int>, Buffers) override { return ""; }
  std::unique_ptr<SharedWindows> share_windows(std::span<const int> ranks, Buffers,
                                               const std::shared_ptr<std::byte>& memory) override {
    return share_among_threads(*world_.group(fmt::format("sharing windows:{}", ranks.front()), ranks, rank_),
                               memory);
  }
  std::unique_ptr<Communicator> window_group(const std::string& name, std::span<const int> ranks,
                                             SharedWindows&, Buffers buffers, void*) override {
    return world_.group(name, ranks, rank_, buffers);
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
  struct Ended {
    bool failed = false;
    base::ExitCode code{};
    std::string message;
  };
  LocalWorld::State& state = *world.state_;
  std::vector<Ended> ended(
      static_cast<size_t>(world.size()));  // each written by its rank, read after the join
  const auto run = [&](int rank) {
    const auto failed = [&](base::ExitCode code, const std::string& what) {
      ended[static_cast<size_t>(rank)] = {true, code, what};
      state.abort(rank, what);
      state.flights[static_cast<size_t>(rank)].fail(what);
    };
    try {
      fn(rank);
      state.flights[static_cast<size_t>(rank)].leave();
    } catch (const base::Error& e) {
      failed(e.code(), e.what());
    } catch (const std::exception& e) {
      failed(base::ExitCode::Internal, e.what());
    }
  };
  std::vector<std::thread> threads;
  std::exception_ptr no_thread;
  for (int rank = 0; rank < world.size(); ++rank) state.flights[static_cast<size_t>(rank)].start(getpid());
  try {
    for (int rank = 0; rank < world.size(); ++rank) threads.emplace_back(run, rank);
  } catch (const std::exception& e) {
    no_thread = std::current_exception();
    state.abort(static_cast<int>(threads.size()), fmt::format("no thread for it: {}", e.what()));
  }
  for (std::thread& thread : threads) thread.join();
  if (no_thread) std::rethrow_exception(no_thread);
  if (std::none_of(ended.begin(), ended.end(), [](const Ended& e) { return e.failed; })) return;
  if (state.culprit < 0) throw base::Error(base::ExitCode::Retry, state.why);
  // What the others threw is that they were turned away.
  Ended& first = ended[static_cast<size_t>(state.culprit)];
  if (!first.failed) first = {true, base::ExitCode::Retry, state.why};
  // A refused setting or a full disk needs no list of who was waiting.
  const bool of_ranks =
      state.failed_in_call || first.code == base::ExitCode::Retry || first.code == base::ExitCode::Internal;
  if (state.table.ends_with('\n')) state.table.pop_back();
  throw base::Error(first.code, fmt::format("rank {}: {}{}", state.culprit, first.message,
                                            of_ranks && !state.table.empty() ? "\n" + state.table : ""));
}

}  // namespace pleat::comm
