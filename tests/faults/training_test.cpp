// A rank of a training run goes wrong in a named stage: of the model, of the optimizer, of the loop.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sstream>

#include "faults/run_support.h"
#include "support/process.h"
#include "support/small_models.h"

namespace pleat {
namespace {

using testing::Case;
using testing::row_of_rank;

constexpr double kStallTimeout = 3;

class TrainingFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 200; ++i) text += fmt::format("{} and {} make {}.\n\n", i, i * i, i + i * i);
    testing::write_file(folder_.at("data.txt"), text);
    testing::write_file(folder_.at("run.toml"), fmt::format(R"({}
moe.num_experts = 8
train.steps = 4
train.num_microbatches = 2
data.train = "{}"
log.tensorboard = false
device.threads = 1
)",
                                                            testing::kRunModel, folder_.at("data.txt")));
  }

  // `fault` as in comm/inject.h, `layout` settings without their section.
  Case make(int ranks, const std::vector<std::string>& layout, const std::string& fault, int code,
            const std::vector<std::string>& words, bool mpi = false) {
    Case c;
    std::string sets;
    for (const std::string& set : layout) sets += " " + set;
    c.name = fmt::format("{} x {},{}: {}", ranks, mpi ? "mpi" : "threads", sets, fault);
    // What needs no time-out to be found must not wait for it.
    c.timeout_seconds = words[0].starts_with("pleat: stall") ? kStallTimeout : 60;
    c.limit_seconds = kStallTimeout + 1;
    c.code = code;
    c.words = words;
    if (mpi) {
      std::istringstream launcher(fmt::format(fmt::runtime(PLEAT_MPIRUN), ranks));
      for (std::string word; launcher >> word;) c.command.push_back(word);
    }
    const std::string run = folder_.at(fmt::format("run{}", num_runs_++));
    if (mpi) c.mark = run + "\"";
    c.command.insert(c.command.end(), {PLEAT_BINARY, "train", folder_.at("run.toml"), "--quiet", "--inject",
                                       fault, "--set", fmt::format("log.run_dir=\"{}\"", run)});
    if (!mpi) c.command.insert(c.command.end(), {"--ranks", std::to_string(ranks)});
    c.command.insert(c.command.end(), {"--set", fmt::format("comm.timeout={}", c.timeout_seconds)});
    for (const std::string& set : layout) c.command.insert(c.command.end(), {"--set", set});
    return c;
  }

  testing::TemporaryFolder folder_;
  int num_runs_ = 0;
};

// The call `what` ("group ... operation ... stage ..."): rank `here` is in it, rank `lost` is not.
std::vector<std::string> stalled(const std::string& what, int here, int lost) {
  return {"pleat: stall: " + what, row_of_rank(here, "yes", "in " + what),
          row_of_rank(lost, "NOT ARRIVED", "")};
}
std::vector<std::string> failed(const std::string& what, int here, int lost) {
  return {fmt::format("pleat: rank {}: [^\n]*fault on purpose before", lost), "was waiting in " + what,
          row_of_rank(here, "yes", "in " + what), row_of_rank(lost, "NOT ARRIVED", "failed; ")};
}
std::vector<std::string> gone(const std::string& what, int here, int lost) {
  return {fmt::format("pleat: rank {} is gone", lost), "was waiting in " + what,
          row_of_rank(here, "yes", "in " + what),
          row_of_rank(lost, "NOT ARRIVED", "process [0-9]+ has ended; ")};
}
// Two ranks in different calls, or with different sizes.
std::vector<std::string> differ(const std::string& group, const std::string& first,
                                const std::string& second) {
  return {
      fmt::format("group '{}' \\(ranks [0-9 ]+\\), call [0-9]+: ranks [0-9] and [0-9] do not agree on the",
                  group),
      fmt::format("rank [0-9] calls [^\n]*'{}'", first), fmt::format("rank [0-9] calls [^\n]*'{}'", second),
      row_of_rank(0, "(failed|running)", "group '"), row_of_rank(1, "(failed|running)", "group '")};
}

std::string call(const std::string& group, const std::string& operation, const std::string& stage) {
  return fmt::format("group '{}' {} #[0-9]+ stage '{}'", group, operation, stage);
}

TEST_F(TrainingFaults, ThreadRanks) {
  const std::vector<std::string> tensor = {"parallel.tp=2"}, expert = {"parallel.ep=2"},
                                 context = {"parallel.cp=2"}, pipeline = {"parallel.pp=2"}, data = {},
                                 windows = {"parallel.ep=2", "parallel.exchange=\"windows\""},
                                 folded = {"parallel.tp=2", "parallel.pp=2", "parallel.ep=2"};
  const std::string all_to_all = "all_to_all", receive = "receive";
  std::vector<Case> cases;
  const auto add = [&](const std::vector<std::string>& layout, const std::string& fault, int code,
                       const std::vector<std::string>& words) {
    cases.push_back(make(&layout == &folded ? 4 : 2, layout, fault, code, words));
  };
  add(tensor, "sleep:1:fwd mb0 L0 attn_scatter", 75,
      stalled(call("tp@compute:0", "reduce_scatter", "fwd mb0 L0 attn_scatter"), 0, 1));
  add(tensor, "throw:0:dgrad mb1 L1 attn_gather:2", 75,
      failed(call("tp@compute:0", "all_gather", "dgrad mb1 L1 attn_gather[.0-9]*"), 1, 0));
  add(tensor, "size:1:fwd mb1 L1 attn_gather", 65,
      differ("tp@compute:0", "fwd mb1 L1 attn_gather", "fwd mb1 L1 attn_gather"));
  add(tensor, "skip:0:fwd mb0 L1 attn_scatter:2", 65,
      differ("tp@compute:0", "fwd mb0 head_gather", "fwd mb0 L1 attn_scatter"));
  add(expert, "sleep:0:fwd mb0 L1 dispatch_exchange", 75,
      stalled(call("etp-ep@compute:0", all_to_all, "fwd mb0 L1 dispatch_exchange[.0-9]*"), 1, 0));
  add(expert, "throw:1:dgrad mb0 L0 combine_exchange", 75,
      failed(call("etp-ep@compute:0", all_to_all, "dgrad mb0 L0 combine_exchange[.0-9]*"), 0, 1));
  add(expert, "size:1:fwd mb0 L0 combine_exchange", 65,
      {"group 'etp-ep@compute:0'[^\n]*'fwd mb0 L0 combine_exchange'",
       "rank 1 sends [0-9]+ bytes to rank 0, which awaits [0-9]+ bytes",
       row_of_rank(0, "(failed|running)", "combine_exchange"),
       row_of_rank(1, "(failed|running)", "combine_exchange")});
  add(expert, "skip:1:dispatch_gather:3", 65,
      differ("etp-ep@compute:0", "fwd mb[01] L[01] dispatch_gather[.0-9]*",
             "fwd mb[01] L[01] dispatch_exchange[.0-9]*"));
  // Meetings about windows, between which ranks store into each other's memory.
  const auto meeting = [](const std::string& stage) {
    return call("etp-ep@windows@compute:0", "barrier", stage);
  };
  add(windows, "sleep:0:fwd mb0 L1 dispatch_meet", 75, stalled(meeting("fwd mb0 L1 dispatch_meet"), 1, 0));
  add(windows, "sleep:1:dgrad mb0 L0 combine_meet", 75, stalled(meeting("dgrad mb0 L0 combine_meet"), 0, 1));
  add(windows, "throw:1:dgrad mb0 L0 dispatch_meet", 75, failed(meeting("dgrad mb0 L0 dispatch_meet"), 0, 1));
  add(windows, "throw:0:fwd mb0 L0 combine_meet", 75, failed(meeting("fwd mb0 L0 combine_meet"), 1, 0));
  add(windows, "skip:1:fwd mb0 L0 combine_meet", 75,
      {"pleat: stall: group 'etp-ep@",
       row_of_rank(0, "[A-Za-z ]+", "in " + meeting("fwd mb0 L0 combine_meet")),
       row_of_rank(1, "[A-Za-z ]+", "in group 'etp-ep@")});
  add(context, "sleep:1:fwd mb1 L0 cp_gather", 75,
      stalled(call("cp@compute:0", "all_gather", "fwd mb1 L0 cp_gather[.0-9]*"), 0, 1));
  add(context, "throw:0:dgrad mb0 L0 cp_scatter", 75,
      failed(call("cp@compute:0", "reduce_scatter", "dgrad mb0 L0 cp_scatter[.0-9]*"), 1, 0));
  // Each waits for the other; the table shows both calls.
  add(pipeline, "sleep:0:fwd mb1 send_x", 75,
      {"pleat: stall: group 'pp@",
       row_of_rank(1, "(yes|NOT ARRIVED)",
                   "in " + call("pp@messages:0", receive, "fwd mb1 receive_x") + " from rank 0"),
       row_of_rank(0, "(yes|NOT ARRIVED)",
                   "in " + call("pp@messages:0", receive, "dgrad mb[01] receive_x") + " from rank 1")});
  add(pipeline, "throw:1:dgrad mb0 send_x", 75,
      failed(call("pp@messages:0", receive, "dgrad mb0 receive_x") + " from rank 1", 0, 1));
  add(pipeline, "skip:1:dgrad mb1 send_x:2", 75,
      {"pleat: stall: group 'pp@",
       row_of_rank(0, "(yes|NOT ARRIVED)",
                   "in " + call("pp@messages:0", receive, "dgrad mb1 receive_x") + " from rank 1"),
       row_of_rank(1, "(yes|NOT ARRIVED)", "in group '")});
  add(pipeline, "size:0:fwd mb0 send_x", 65,
      {"group 'pp@messages:0'[^\n]*'fwd mb0 (send|receive)_x'",
       "[0-9]+ bytes sent for stage 'fwd mb0 send_x', [0-9]+ bytes awaited for stage 'fwd mb0 receive_x'",
       row_of_rank(0, "(failed|running)", "group '"), row_of_rank(1, "(failed|running)", "group '")});
  add(data, "sleep:1:grad_reduce:5", 75,
      stalled(call("[a-z-]+@[a-z_]+:0", "reduce_scatter", "wgrad [^\n]*grad_reduce[.0-9]*"), 0, 1));
  add(data, "throw:0:update norm_reduce:2", 75,
      failed(call("world@compute:0", "all_reduce", "update norm_reduce"), 1, 0));
  add(data, "size:1:bucket_gather:2", 65,
      differ("[a-z-]+@[a-z_]+:0", "update [^\n]*bucket_gather[.0-9]*", "update [^\n]*bucket_gather[.0-9]*"));
  add(data, "sleep:1:loop.stop", 75, stalled(call("run", "all_reduce", "loop.stop"), 0, 1));
  add(data, "throw:1:state.digest", 75, failed(call("run", "[a-z_]+", "state.digest"), 0, 1));
  add(folded, "throw:3:fwd mb0 L1 dispatch_exchange", 75,
      failed(call("etp-ep@compute:2", all_to_all, "fwd mb0 L1 dispatch_exchange[.0-9]*"), 2, 3));
  add(folded, "sleep:1:fwd mb0 L0 combine_exchange", 75,
      stalled(call("etp-ep@compute:0", all_to_all, "fwd mb0 L0 combine_exchange[.0-9]*"), 0, 1));
  testing::judge(cases, testing::run_cases(cases, 4));
}

TEST_F(TrainingFaults, MpiRanks) {
  if (std::string(PLEAT_MPIRUN).empty()) GTEST_SKIP() << "no MPI in this build";
  std::vector<Case> cases;
  const std::string dispatch = call("etp-ep@compute:0", "all_to_all", "fwd mb0 L0 dispatch_exchange[.0-9]*");
  cases.push_back(
      make(2, {"parallel.ep=2"}, "kill:1:fwd mb0 L0 dispatch_exchange", -1, gone(dispatch, 0, 1), true));
  cases.push_back(make(2, {}, "stop:0:update norm_reduce:2", 75,
                       stalled(call("world@compute:0", "all_reduce", "update norm_reduce"), 1, 0), true));
  cases.push_back(make(4, {"parallel.tp=2", "parallel.pp=2"}, "kill:3:dgrad mb0 L1 attn_scatter", -1,
                       gone(call("tp@compute:2", "reduce_scatter", "dgrad mb0 L1 attn_scatter"), 2, 3),
                       true));
  cases.push_back(
      make(2, {"parallel.pp=2"}, "throw:1:dgrad mb0 send_x", 75,
           {"pleat: rank 1 failed: [^\n]*fault on purpose before send of stage 'dgrad mb0 send_x'",
            row_of_rank(0, "(yes|running)", "receive #[0-9]+ stage 'dgrad mb0 receive_x' from rank 1")},
           true));
  cases.push_back(
      make(2, {"parallel.pp=2"}, "stop:1:fwd mb0 receive_x", 75,
           stalled(call("pp@messages:0", "(send|receive)", "(fwd|dgrad) mb0 (send|receive)_x"), 0, 1), true));
  testing::judge(cases, testing::run_cases(cases, 2));
}

}  // namespace
}  // namespace pleat
