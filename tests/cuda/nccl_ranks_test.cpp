// NCCL ranks as processes on one GPU: every operation, whole steps beside those of thread ranks, and what is said when a
// rank does not come. Skipped where the loaded library cannot do it.
//
// NcclRank.DISABLED_* is what one rank does; only the tests above them start it.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <sstream>

#include "base/posix_vfs.h"
#include "checkpoint/save.h"
#include "comm/comm_support.h"
#include "comm/exercise.h"
#include "comm/inject.h"
#include "cuda/cuda_support.h"
#include "cuda/nccl_world_support.h"
#include "kernels/cuda/choices.h"
#include "resume/ranks_support.h"
#include "resume/resume_support.h"
#include "train/matmul_choices.h"
#include "train/run_choices.h"
#include "train/trainer.h"

namespace pleat::train {
namespace {

using pleat::testing::NcclEnded;
using pleat::testing::NcclRank;
using pleat::testing::run_nccl_ranks;
using pleat::testing::StagedNccl;

#define PLEAT_NEEDS_NCCL_RANKS() \
  PLEAT_NEEDS_GPU();             \
  if (const std::string why = pleat::testing::no_nccl_ranks(); !why.empty()) GTEST_SKIP() << why

void expect_all_well(const NcclEnded& ended) {
  for (size_t r = 0; r < ended.codes.size(); ++r)
    EXPECT_EQ(ended.codes[r], 0) << "rank " << r << ":\n" << ended.said[r];
}

TEST(CudaNcclRanks, DoEveryOperation) {
  PLEAT_NEEDS_NCCL_RANKS();
  const testing::TemporaryFolder folder;
  for (const int size : {2, 4}) {
    SCOPED_TRACE(size);
    expect_all_well(run_nccl_ranks(folder.path(), size, "Operations", std::to_string(size)));
  }
}

TEST(NcclRank, DISABLED_Operations) {
  if (!NcclRank::is_one()) GTEST_SKIP() << "is started by CudaNcclRanks";
  NcclRank::run(60, [](comm::Endpoint& world, const NcclRank&) {
    StagedNccl all(world, "all", pleat::testing::all_of(world.size()));
    std::string digest;
    EXPECT_EQ(pleat::testing::run_cases(all.group(), digest, pleat::testing::Sums::Native), "");
    for (const comm::Exercised& e : comm::exercise(all.group(), {4096, 1}))
      EXPECT_EQ(e.fault, "") << e.operation;
    all.wait_for_all();
  });
}

// A rank that never comes to a call ends in the table of who waits where, as with every carrier.
TEST(CudaNcclRanks, ARankThatDoesNotComeIsNamed) {
  PLEAT_NEEDS_NCCL_RANKS();
  const testing::TemporaryFolder folder;
  const NcclEnded ended = run_nccl_ranks(folder.path(), 2, "Late", "", 60);
  EXPECT_EQ(ended.codes[0], 75) << ended.said[0];
  for (const char* words :
       {"stall: group 'all' all_reduce #1 stage 'second'", "rank 0 has waited", "the time-out is 6 s",
        "NOT ARRIVED  in no call; last was group 'all' all_reduce #0 stage 'first'"})
    EXPECT_NE(ended.said[0].find(words), std::string::npos) << "'" << words << "' in:\n" << ended.said[0];
}

TEST(NcclRank, DISABLED_Late) {
  if (!NcclRank::is_one()) GTEST_SKIP() << "is started by CudaNcclRanks";
  NcclRank::run(6, [](comm::Endpoint& world, const NcclRank&) {
    StagedNccl all(world, "all", pleat::testing::all_of(world.size()));
    float one = 1;
    all.group().all_reduce("first", std::span(&one, 1), comm::Reduce::Sum);
    EXPECT_EQ(one, 2);
    if (world.rank() == 1) sleep(60);
    all.group().all_reduce("second", std::span(&one, 1), comm::Reduce::Sum);
  });
}

// One that never comes to open groups is named as well: before NCCL starts, nobody hangs in it.
TEST(CudaNcclRanks, ARankThatOpensNoGroupIsNamed) {
  PLEAT_NEEDS_NCCL_RANKS();
  const testing::TemporaryFolder folder;
  const NcclEnded ended = run_nccl_ranks(folder.path(), 3, "Absent", "", 60, 12);
  bool named = false;  // by the one that waited longest; the other may end because that one did
  for (const size_t r : {0U, 1U}) {
    EXPECT_EQ(ended.codes[r], 75) << ended.said[r];
    EXPECT_NE(ended.said[r].find("stall: group"), std::string::npos) << ended.said[r];
    named |= ended.said[r].find("these ranks have not come: 2\n") != std::string::npos;
  }
  EXPECT_TRUE(named) << ended.said[0] << ended.said[1];
  EXPECT_LT(ended.seconds_to_first, 30);
}

TEST(NcclRank, DISABLED_Absent) {
  if (!NcclRank::is_one()) GTEST_SKIP() << "is started by CudaNcclRanks";
  NcclRank::run(6, [](comm::Endpoint& world, const NcclRank&) {
    if (world.rank() == 2) sleep(60);
    StagedNccl all(world, "all", pleat::testing::all_of(world.size()));
  });
}

// ---- Whole steps

struct StepCase {
  const char* name;
  std::vector<std::string> sets;
  bool graph;  // no exchange needs the host: steps become graphs
};
const std::vector<StepCase>& step_cases() {
  static const std::vector<StepCase> all = {
      {"dp2", {}, true},
      {"ep2", {"parallel.ep=2"}, true},
      {"ep2windows", {"parallel.ep=2", "parallel.exchange=\"windows\""}, true},
      {"ep2counted", {"parallel.ep=2", "parallel.exchange=\"counted\""}, false},
      {"ep2padded", {"parallel.ep=2", "parallel.exchange=\"padded\""}, true},
      {"ep2gather", {"parallel.ep=2", "parallel.dispatcher=\"allgather\""}, true},
      {"tp2", {"parallel.tp=2"}, true},
      {"pp2", {"parallel.pp=2"}, true},
      {"cp2", {"parallel.cp=2"}, true},
      {"cp2ring", {"parallel.cp=2", "parallel.context=\"ring\""}, true},
      {"cp2alltoall", {"parallel.cp=2", "parallel.context=\"alltoall\""}, true},
  };
  return all;
}
constexpr double kRate = 1e-3;

config::Config step_config(const std::string& data, const std::string& run,
                           const std::vector<std::string>& sets) {
  std::vector<std::string> all = {"device.kind=\"cuda\"",     "model.dtype=\"float32\"",
                                  "model.num_kv_heads=4",     "model.vocab_size=272",
                                  "train.num_microbatches=4", fmt::format("optimizer.lr={}", kRate),
                                  "optimizer.warmup_steps=0"};
  all.insert(all.end(), sets.begin(), sets.end());
  return config::resolve(config::parse(testing::run_toml(data, run, 3), all));
}

// Losses of three steps, and the state behind the first of them, saved.
std::vector<double> train_and_save(Trainer& trainer, const std::string& directory) {
  std::vector<double> losses = {trainer.step().record.loss};
  base::PosixVfs vfs;
  std::filesystem::create_directories(directory);
  trainer.save(vfs, directory, {});
  for (int i = 0; i < 2; ++i) losses.push_back(trainer.step().record.loss);
  return losses;
}

TEST(NcclRank, DISABLED_Steps) {
  if (!NcclRank::is_one()) GTEST_SKIP() << "is started by CudaNcclRanks";
  NcclRank::run(100, [](comm::Endpoint& world, const NcclRank& rank) {
    for (const StepCase& c : step_cases()) {
      if (rank.argument != c.name) continue;
      const config::Config config = step_config(rank.folder + "/../data", rank.folder + "/run", c.sets);
      runtime::Crew crew(config, world, 1);
      runtime::ProgramChoice choice;
      choice.bind_in_turn = [&](const std::function<void()>& bind) { bind_with_one_choice(crew, bind); };
      Trainer trainer(config, choice, {}, &crew);
      std::string text;
      for (const double loss : train_and_save(trainer, rank.folder + "/saved"))
        text += fmt::format("{:a}\n", loss);
      pleat::testing::write_file(fmt::format("{}/losses{}", rank.folder, world.rank()), text);
      if (crew.leads())
        pleat::testing::write_file(rank.folder + "/" + kMatmulChoicesFile, to_json(current_choices()));
      const auto& executor = dynamic_cast<interpret::CudaExecutor&>(trainer.programs().train());
      EXPECT_EQ(executor.num_graph_nodes() > 0, c.graph);
      crew.wait_for_all("end");
      return;
    }
    ADD_FAILURE() << "no case '" << rank.argument << "'";
  });
}

// The tensors of a saved state as one rank holds them.
testing::Tensors loaded(const config::Config& config, const std::string& directory) {
  base::PosixVfs vfs;
  Trainer alone(config);
  alone.restore(checkpoint::open_step(vfs, directory, 1));
  return testing::tensors_of(alone);
}

// With two ranks every sum has two terms. NCCL adds them in float32; ordered groups add in double and round once, which
// for two terms is the same number (double has more than twice the digits). With the same algorithms of products, all
// bits are the same.
void expect_same_state(const testing::Tensors& got, const testing::Tensors& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, bytes] : want) {
    const auto found = got.find(name);
    ASSERT_TRUE(found != got.end()) << name;
    EXPECT_TRUE(found->second == bytes) << name;
  }
}

TEST(CudaNcclRanks, StepsAreThoseOfThreadRanks) {
  PLEAT_NEEDS_NCCL_RANKS();
  const testing::TemporaryFolder folder;
  testing::write_dataset(folder.at("data"), 6000, 7);
  const config::Config one = step_config(folder.at("data"), folder.at("run"), {});
  for (const StepCase& c : step_cases()) {
    SCOPED_TRACE(c.name);
    const NcclEnded ended = run_nccl_ranks(folder.path(), 2, "Steps", c.name, 150);
    expect_all_well(ended);
    if (HasFailure()) return;
    const config::Config config = step_config(folder.at("data"), folder.at("run"), c.sets);
    const std::string room = folder.at(std::string("Steps") + c.name);
    kernels::use_matmul_choices(
        choices_from_json(pleat::testing::read_file(room + "/" + kMatmulChoicesFile), room).choices);
    std::vector<double> want;
    const std::string directory = folder.at(fmt::format("threads_{}", c.name));
    testing::Ranks(config, 2).each([&](runtime::Crew& crew) {
      Trainer trainer(config, {}, {}, &crew);
      const std::vector<double> losses = train_and_save(trainer, directory);
      if (crew.leads()) want = losses;
    });
    const std::string said = pleat::testing::read_file(room + "/losses0");
    EXPECT_EQ(said, pleat::testing::read_file(room + "/losses1")) << "ranks disagree";
    std::stringstream lines(said);
    for (size_t i = 0; i < want.size(); ++i) {
      std::string line;
      ASSERT_TRUE(std::getline(lines, line));
      EXPECT_EQ(std::strtod(line.c_str(), nullptr), want[i]) << "step " << i + 1;
    }
    expect_same_state(loaded(one, room + "/saved"), loaded(one, directory));
  }
}

// A fault inside a training step: the stage is the program's. With comm.check the ranks differ in words, without they
// wait until one says where.
struct StepFault {
  const char *name, *fault;
  bool check;
  int code;
  const char* words;
};
constexpr StepFault kStepFaults[] = {
    {"killed", "kill:1:grad_reduce", false, 75, "has ended"},
    {"stopped", "stop:1:norm_reduce", false, 75, "is stopped"},
    {"sleeps", "sleep:1:grad_reduce:2", false, 75, "NOT ARRIVED"},
    {"checkedSize", "size:1:grad_reduce", true, 65, "do not agree on the shape"},
};

TEST(CudaNcclRanks, AFaultInAStepEndsTheOthers) {
  PLEAT_NEEDS_NCCL_RANKS();
  const testing::TemporaryFolder folder;
  testing::write_dataset(folder.at("data"), 6000, 7);
  for (const StepFault& f : kStepFaults) {
    SCOPED_TRACE(f.name);
    const NcclEnded ended = run_nccl_ranks(folder.path(), 2, "StepFault", f.name, 100, 12);
    // One rank writes the table for all; who finds that the other has failed ends with 75.
    const std::string said = ended.said[0] + ended.said[1];
    EXPECT_TRUE(ended.codes[0] == f.code || (ended.codes[0] == 75 && ended.codes[1] == f.code))
        << ended.codes[0] << " and " << ended.codes[1] << "\n"
        << said;
    EXPECT_NE(said.find(f.words), std::string::npos) << "'" << f.words << "' in:\n" << said;
  }
}

TEST(NcclRank, DISABLED_StepFault) {
  if (!NcclRank::is_one()) GTEST_SKIP() << "is started by CudaNcclRanks";
  const StepFault* fault = nullptr;
  for (const StepFault& f : kStepFaults)
    if (NcclRank::given() == f.name) fault = &f;
  ASSERT_NE(fault, nullptr);
  comm::Options options;
  options.timeout_seconds = 10;
  options.check = fault->check;
  options.inject = comm::inject(comm::parse_fault(fault->fault));
  NcclRank::run(options, [](comm::Endpoint& world, const NcclRank& rank) {
    const config::Config config = step_config(rank.folder + "/../data", rank.folder + "/run", {});
    runtime::Crew crew(config, world, 1);
    runtime::ProgramChoice choice;
    choice.bind_in_turn = [&](const std::function<void()>& bind) { bind_with_one_choice(crew, bind); };
    Trainer trainer(config, choice, {}, &crew);
    for (int step = 0; step < 3; ++step) trainer.step();
    crew.wait_for_all("end");
  });
}

}  // namespace
}  // namespace pleat::train
