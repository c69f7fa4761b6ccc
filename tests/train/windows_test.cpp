// Ranks that store into each other's windows: how much, and what is said when one fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <set>

#include "base/error.h"
#include "comm/local/local_world.h"
#include "runtime/crew.h"
#include "train/train_support.h"

namespace pleat::train::testing {
namespace {

// Ranks that pause between what they were told and their stores, as a slow machine would.
std::vector<int64_t> late_stores(const program::Program& program) {
  std::vector<int64_t> least_ns;
  for (const program::Stage& s : program.stages)
    least_ns.push_back(s.op == program::Op::dispatch_gather ? 50'000'000 : 0);
  return least_ns;
}

TEST(Windows, ARankThatFailsBeforeItsMeetingIsNamedByOthersThatStillStore) {
  const config::Config config = small_config(
      "", {"parallel.ep=4", "parallel.exchange=windows", "model.num_layers=1", "moe.num_experts=8",
           "train.num_microbatches=4", "train.seq_len=64", "device.threads=1"});
  for (int bad = 0; bad < 4; ++bad) {
    comm::Options options;
    options.timeout_seconds = 60;
    options.inject = [&](int rank, std::string_view, int, comm::Call& call) {
      if (rank == bad && call.stage.find("dispatch_meet") != std::string_view::npos)
        base::fail_with(base::ExitCode::Numerical, "planted before a meeting");
      return true;
    };
    comm::LocalWorld world(4, options);
    try {
      comm::run_ranks(world, [&](int rank) {
        const auto endpoint = world.endpoint(rank);
        runtime::Crew crew(config, *endpoint, 1);
        runtime::Programs programs(config, train_only(), &crew);
        programs.initialize();
        config::Config mine = config;
        mine.train.num_microbatches = 1;
        write_random_batch(programs.train(), mine, 1);
        const std::vector<int64_t> late = late_stores(programs.train().program());
        interpret::RunOptions run;
        if (rank != bad) run.least_ns = late;
        programs.train().run(run);
      });
      ADD_FAILURE() << "no error";
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ExitCode::Numerical);
      EXPECT_EQ(std::string(e.what()).find("rank " + std::to_string(bad) + ": "), 0u) << e.what();
      EXPECT_NE(std::string(e.what()).find("planted before a meeting"), std::string::npos) << e.what();
    }
  }
}

// Bytes of a window that were stored into since it was filled with a pattern that no store leaves behind.
struct Stored {
  int64_t rows = 0, probs = 0, sources = 0, lists = 0;
};

class StoresOfADispatch {
 public:
  StoresOfADispatch()
      : config_(small_config(
            "", {"parallel.ep=4", "parallel.exchange=windows", "model.num_layers=1", "moe.num_experts=16",
                 "moe.top_k=6", "train.num_microbatches=4", "train.seq_len=64", "device.threads=1"})) {
    comm::Options options;
    options.timeout_seconds = 60;
    options.inject = [this](int rank, std::string_view, int, comm::Call& call) {
      // Nobody stores before all have filled their windows, and nobody goes on before all have looked.
      if (call.stage.find("dispatch_gather") != std::string_view::npos) {
        fill(rank);
        all_.arrive_and_wait();
      } else if (call.stage.find("dispatch_meet") != std::string_view::npos && !looked_[size_t(rank)]) {
        all_.arrive_and_wait();
        looked_[size_t(rank)] = true;
        look(rank);
        all_.arrive_and_wait();
      }
      return true;
    };
    comm::LocalWorld world(4, options);
    comm::run_ranks(world, [&](int rank) {
      const auto endpoint = world.endpoint(rank);
      runtime::Crew crew(config_, *endpoint, 1);
      runtime::Programs programs(config_, train_only(), &crew);
      programs.initialize();
      config::Config mine = config_;
      mine.train.num_microbatches = 1;
      write_random_batch(programs.train(), mine, 1 + rank);
      executors_[size_t(rank)] = &programs.train();
      programs.train().run({});
    });
  }

  const config::Config& config() const { return config_; }
  const std::vector<int32_t>& choices(int rank) const { return choices_[size_t(rank)]; }
  const Stored& stored(int rank) const { return stored_[size_t(rank)]; }  // in its window, by all ranks

 private:
  static constexpr uint32_t kPattern = 0xa5c3f00d;

  std::pair<uint32_t*, int64_t> words(int rank, const char* what) const {
    interpret::Executor& executor = *executors_[size_t(rank)];
    const auto& values = executor.program().values;
    for (size_t v = 0; v < values.size(); ++v)
      if (values[v].name.find(what) != std::string::npos && values[v].name.find("d_") == std::string::npos) {
        return {static_cast<uint32_t*>(executor.data(static_cast<program::ValueId>(v))),
                program::num_bytes(values[v]) / 4};
      }
    ADD_FAILURE() << "no value " << what;
    return {nullptr, 0};
  }
  void fill(int rank) {
    for (const char* what : {"sent_rows", "sent_probs", "sent_source", "sent_lists"}) {
      const auto [at, count] = words(rank, what);
      std::fill_n(at, count, kPattern);
    }
  }
  void look(int rank) {
    const auto changed = [&](const char* what) {
      const auto [at, count] = words(rank, what);
      return 4 * (count - std::count(at, at + count, kPattern));
    };
    stored_[size_t(rank)] = {changed("sent_rows"), changed("sent_probs"), changed("sent_source"),
                             changed("sent_lists")};
    const auto [at, count] = words(rank, "idx");
    choices_[size_t(rank)].assign(at, at + count);
  }

  config::Config config_;
  std::barrier<> all_{4};
  std::array<bool, 4> looked_{};
  std::array<interpret::Executor*, 4> executors_{};
  std::array<Stored, 4> stored_{};
  std::array<std::vector<int32_t>, 4> choices_;
};

// A token's row goes once to each rank that has experts of it, with one list; probability and place once per choice.
TEST(Windows, RanksStoreWhatTheRoutingAsksFor) {
  const StoresOfADispatch run;
  const int64_t k = run.config().moe.top_k, own = run.config().moe.num_experts / 4,
                h = run.config().model.hidden_size, listed = std::min(k, own);
  int64_t rows_elsewhere = 0, choices_elsewhere = 0;
  for (int rank = 0; rank < 4; ++rank) {
    int64_t tokens = 0, choices = 0;
    for (int source = 0; source < 4; ++source) {
      const std::vector<int32_t>& idx = run.choices(source);
      for (size_t t = 0; t < idx.size() / size_t(k); ++t) {
        int64_t here = 0;
        for (size_t s = t * size_t(k); s < (t + 1) * size_t(k); ++s) here += idx[s] / own == rank;
        tokens += here > 0;
        choices += here;
        if (source != rank) rows_elsewhere += here > 0, choices_elsewhere += here;
      }
    }
    const Stored& stored = run.stored(rank);
    EXPECT_EQ(stored.rows, tokens * h * 8) << rank;  // a model in float64
    EXPECT_EQ(stored.lists, tokens * listed * 4) << rank;
    EXPECT_EQ(stored.probs, choices * 8) << rank;
    EXPECT_EQ(stored.sources, choices * 4) << rank;
  }
  // Six choices of a token lie on four ranks at most: the other ways move a row for each of them.
  EXPECT_LE(rows_elsewhere, 3 * 4 * run.config().train.seq_len * run.config().train.micro_batch);
  EXPECT_GT(choices_elsewhere, rows_elsewhere * 5 / 4);
}

}  // namespace
}  // namespace pleat::train::testing
