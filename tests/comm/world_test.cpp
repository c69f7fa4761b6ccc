// What launchers say about the world, and what they must not say.
#include "comm/world.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "comm/gpu_choice.h"

namespace pleat {
namespace {

using Variables = std::map<std::string, std::string>;

comm::World read(const Variables& variables) {
  return comm::read_world([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

void expect_refused(const Variables& variables, std::initializer_list<std::string> words) {
  try {
    read(variables);
    ADD_FAILURE() << "accepted";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ExitCode::BadInput);
    for (const std::string& word : words)
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << "'" << word << "' in: " << e.what();
  }
}

TEST(World, NothingSetIsAWorldOfOne) {
  const comm::World w = read({});
  EXPECT_EQ(w.rank, 0);
  EXPECT_EQ(w.size, 1);
  EXPECT_EQ(w.launcher, "none");
}

TEST(World, EachLauncher) {
  const Variables launchers[] = {
      {{"OMPI_COMM_WORLD_RANK", "5"},
       {"OMPI_COMM_WORLD_SIZE", "8"},
       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}},
      {{"MV2_COMM_WORLD_RANK", "5"},
       {"MV2_COMM_WORLD_SIZE", "8"},
       {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
       {"MV2_COMM_WORLD_LOCAL_SIZE", "4"}},
      {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "4"}},
      {{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}},
      {{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "1"}, {"SLURM_STEP_ID", "0"}},
  };
  for (const Variables& variables : launchers) {
    const comm::World w = read(variables);
    EXPECT_EQ(w.rank, 5);
    EXPECT_EQ(w.size, 8);
    EXPECT_EQ(w.local_rank, 1);
    EXPECT_NE(w.launcher, "none");
  }
}

// Slurm's PMI sets rank and size the same way, but says the local rank in its own words.
TEST(World, PmiOfAnotherLauncher) {
  const comm::World w = read({{"PMI_RANK", "5"},
                              {"PMI_SIZE", "8"},
                              {"SLURM_PROCID", "5"},
                              {"SLURM_NTASKS", "8"},
                              {"SLURM_LOCALID", "1"},
                              {"SLURM_STEP_ID", "0"}});
  EXPECT_EQ(w.launcher, "Slurm");
  EXPECT_EQ(w.local_rank, 1);
}

TEST(World, TheGpuIsThatOfTheLocalRank) {
  comm::World w;
  EXPECT_EQ(comm::gpu_of(w, 1), 0);
  EXPECT_EQ(comm::gpu_of(w, 8), 0);
  w.rank = 11, w.size = 16, w.local_rank = 3, w.local_size = 8, w.launcher = "Slurm";
  EXPECT_EQ(comm::gpu_of(w, 8), 3);
  EXPECT_EQ(comm::gpu_of(w, 4), 3);
  EXPECT_EQ(comm::gpu_of(w, 1), 0);  // its own alone: whether it is shared is asked once ranks have met
  for (const auto& [gpus, words] : std::map<int, std::string>{{3, "sees 3 GPUs"}, {2, "sees 2 GPUs;"}}) {
    try {
      comm::gpu_of(w, gpus);
      ADD_FAILURE() << "accepted with " << gpus;
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ExitCode::Hardware);
      for (const std::string& word : {words, std::string("rank 11 of 16 is local rank 3 here (Slurm)")})
        EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
    }
  }
}

TEST(World, TwoLaunchersMayAgree) {
  Variables both = {{"RANK", "1"},         {"WORLD_SIZE", "2"},   {"LOCAL_RANK", "1"},
                    {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "1"},
                    {"SLURM_STEP_ID", "0"}};
  EXPECT_EQ(read(both).rank, 1);
  both["SLURM_PROCID"] = both["SLURM_LOCALID"] = "0";
  expect_refused(both, {"disagree", "RANK=1 WORLD_SIZE=2", "SLURM_PROCID=0 SLURM_NTASKS=2"});
}

TEST(World, LauncherInsideABatchScript) {
  const Variables script = {{"SLURM_PROCID", "0"},         {"SLURM_NTASKS", "16"},
                            {"SLURM_LOCALID", "0"},        {"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "3"}};
  EXPECT_EQ(read(script).rank, 3);
  EXPECT_EQ(read({{"SLURM_NTASKS", "16"}}).size, 1);
}

TEST(World, WithoutTheVariablesOfOtherLaunchersNobodyDisagrees) {
  Variables shell = {{"SLURM_PROCID", "0"},    {"SLURM_NTASKS", "1"}, {"SLURM_LOCALID", "0"},
                     {"SLURM_STEP_ID", "3"},   {"PMI_RANK", "0"},     {"PMI_SIZE", "1"},
                     {"MPI_LOCALRANKID", "0"}, {"RANK", "1"},         {"WORLD_SIZE", "2"},
                     {"LOCAL_RANK", "1"}};
  expect_refused(shell, {"disagree"});
  for (const std::string& name : comm::variables_of_other_launchers()) shell.erase(name);
  EXPECT_EQ(read(shell).rank, 1);
}

TEST(World, InconsistentIsRefusedByName) {
  expect_refused({{"RANK", "1"}}, {"RANK=1", "not WORLD_SIZE"});
  expect_refused({{"WORLD_SIZE", "4"}}, {"WORLD_SIZE=4", "not RANK"});
  expect_refused({{"LOCAL_RANK", "0"}}, {"LOCAL_RANK=0", "not RANK"});
  expect_refused({{"OMPI_COMM_WORLD_SIZE", "4"}}, {"OMPI_COMM_WORLD_RANK"});
  expect_refused({{"SLURM_PROCID", "4"}}, {"SLURM_PROCID=4", "SLURM_NTASKS"});
  expect_refused({{"RANK", "4"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "0"}},
                 {"RANK=4 with WORLD_SIZE=4", "needed a rank from 0 to 3"});
  expect_refused({{"RANK", "0"}, {"WORLD_SIZE", "0"}, {"LOCAL_RANK", "0"}}, {"WORLD_SIZE='0'", "1 or more"});
  expect_refused({{"RANK", "-1"}, {"WORLD_SIZE", "4"}}, {"RANK='-1'"});
  expect_refused({{"RANK", "1x"}, {"WORLD_SIZE", "4"}}, {"RANK='1x'"});
  expect_refused({{"RANK", "1"}, {"WORLD_SIZE", "4"}}, {"LOCAL_RANK is not set"});
  expect_refused({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "2"}}, {"LOCAL_RANK=2", "RANK=1"});
  expect_refused({{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}},
                 {"LOCAL_RANK=2 with LOCAL_WORLD_SIZE=2", "from 0 to 1"});
}

// Every wrong form of every variable: its name, what was got, and what is needed.
TEST(World, AWrongVariableIsNamedWithWhatIsNeeded) {
  const Variables right = {
      {"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}};
  ASSERT_EQ(read(right).rank, 1);
  for (const auto& [name, value] : right) {
    const std::string lowest = name.find("SIZE") == std::string::npos ? "0 or more" : "1 or more";
    for (const char* wrong : {"", " ", "two", "1x", "0x1", "-1", "1.5", "99999999999"}) {
      Variables variables = right;
      variables[name] = wrong;
      expect_refused(variables, {name + "='" + wrong + "'", "needed a whole number, " + lowest});
    }
    expect_refused({{name, value}}, {name + "=" + value, name == "RANK" ? "not WORLD_SIZE" : "not RANK"});
  }
  Variables variables = right;
  variables["RANK"] = "";
  expect_refused(variables, {"or the variable unset"});
  variables = right;
  variables.erase("LOCAL_RANK");
  expect_refused(variables,
                 {"RANK=1 WORLD_SIZE=4 but LOCAL_RANK is not set", "needed the number of this rank"});
  variables = right;
  variables["LOCAL_WORLD_SIZE"] = "5";
  expect_refused(variables, {"LOCAL_WORLD_SIZE=5 with WORLD_SIZE=4", "from 1 to 4"});
  variables = right;
  variables["LOCAL_RANK"] = "4";
  variables.erase("LOCAL_WORLD_SIZE");
  expect_refused(variables, {"LOCAL_RANK=4 with WORLD_SIZE=4", "from 0 to 3"});
  variables = right;
  variables["RANK"] = "0";
  expect_refused(variables, {"LOCAL_RANK=1 with RANK=0", "from 0 to 0"});
}

}  // namespace
}  // namespace pleat
