#include "cuda/nccl_world_support.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/error.h"
#include "comm/nccl/nccl_group.h"
#include "comm/process/run_rank.h"
#include "comm/tcp/socket.h"
#include "cuda/staged_communicator_support.h"
#include "device/cuda/cuda.h"
#include "support/process.h"

namespace pleat::testing {
namespace {

constexpr const char *kFolder = "PLEAT_NCCL_FOLDER", *kArgument = "PLEAT_NCCL_ARGUMENT";

std::string said_by_environment(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

std::string no_nccl_ranks() {
  if (!comm::nccl_is_built_in()) return "NCCL is " + comm::nccl_description();
  if (comm::nccl_version() < 23000)
    return comm::nccl_description() + " is loaded; from 2.30 on several ranks may share a GPU";
  if (said_by_environment("NCCL_MULTI_RANK_GPU_ENABLE") != "1")
    return "NCCL_MULTI_RANK_GPU_ENABLE=1 is not in the environment: NCCL lets no two ranks share a GPU";
  return "";
}

NcclEnded run_nccl_ranks(const std::string& folder, int size, const std::string& rank_test,
                         const std::string& argument, double seconds, double after_first) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<std::unique_ptr<PleatProcess>> ranks;
  const std::string room = fmt::format("{}/{}", folder, rank_test + argument);
  std::filesystem::create_directories(room);
  const int port = comm::tcp::port_of(comm::tcp::listen_at(0));  // free a moment ago
  for (int r = 0; r < size; ++r) {
    const std::string own = fmt::format("{}/rank{}", room, r);
    std::filesystem::create_directories(own);
    ranks.push_back(std::make_unique<PleatProcess>(
        own,
        // A rank is one test: shards of the tests that start ranks are not its own.
        std::vector<std::string>{
            "-u", "GTEST_TOTAL_SHARDS", "-u", "GTEST_SHARD_INDEX", fmt::format("RANK={}", r),
            fmt::format("LOCAL_RANK={}", r), fmt::format("WORLD_SIZE={}", size), "MASTER_ADDR=127.0.0.1",
            fmt::format("MASTER_PORT={}", port), fmt::format("{}={}", kFolder, room),
            fmt::format("{}={}", kArgument, argument), self, "--gtest_also_run_disabled_tests",
            "--gtest_brief=1", "--gtest_filter=NcclRank.DISABLED_" + rank_test},
        "/usr/bin/env"));
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto num_running = [&] {
    int num = 0;
    for (const auto& rank : ranks) num += rank->running() ? 1 : 0;
    return num;
  };
  NcclEnded ended;
  double last = seconds;
  for (int running = num_running(); running > 0 && seconds_since(begin) < last; running = num_running()) {
    if (running < size && ended.seconds_to_first == 0) {
      ended.seconds_to_first = seconds_since(begin);
      last = std::min(last, ended.seconds_to_first + after_first);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  for (const auto& rank : ranks) {
    if (rank->running()) rank->send(SIGKILL);
    const Ended one = rank->wait();
    ended.codes.push_back(one.code);
    ended.said.push_back(one.out + one.err);
  }
  return ended;
}

bool NcclRank::is_one() { return !said_by_environment(kFolder).empty(); }

std::string NcclRank::given() { return said_by_environment(kArgument); }

void NcclRank::run(double timeout_seconds, const std::function<void(comm::Endpoint&, const NcclRank&)>& fn) {
  comm::Options options;
  options.timeout_seconds = timeout_seconds;
  run(options, fn);
}

void NcclRank::run(const comm::Options& options,
                   const std::function<void(comm::Endpoint&, const NcclRank&)>& fn) {
  const NcclRank rank{said_by_environment(kFolder), said_by_environment(kArgument)};
  try {
    comm::run_process_rank(comm::read_world(), options, [&](comm::Endpoint& e, int) { fn(e, rank); });
  } catch (const base::Error& e) {
    fmt::print(stderr, "error: {}\n", e.what());
    std::_Exit(static_cast<int>(e.code()));
  }
}

struct StagedNccl::Inside {
  device::cuda::Lane lane;
  comm::RankFlight flight;
  std::unique_ptr<comm::Communicator> group;
};

StagedNccl::StagedNccl(comm::Endpoint& endpoint, const std::string& name, std::span<const int> ranks)
    : host_(endpoint.group(name + " on the host", ranks, comm::Buffers::Host, nullptr)),
      inside_(std::make_unique<Inside>()) {
  inside_->flight.start(getpid());
  inside_->group = endpoint.group(name, ranks, comm::Buffers::Device, inside_->lane.stream());
  outer_ = staged(*inside_->group, inside_->flight);
}

StagedNccl::~StagedNccl() = default;

comm::Communicator& StagedNccl::enqueued() { return *inside_->group; }

void StagedNccl::stand_aside(comm::Endpoint& endpoint) { endpoint.groups({}, comm::Buffers::Device); }

void StagedNccl::wait_for_all() { host_->barrier("end"); }

}  // namespace pleat::testing
