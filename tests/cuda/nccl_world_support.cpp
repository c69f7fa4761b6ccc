#include "cuda/nccl_world_support.h"

#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "comm/nccl/nccl_group.h"
#include "cuda/staged_communicator_support.h"
#include "support/process.h"

namespace pleat::testing {
namespace {

constexpr int kMaxRanks = 8;
constexpr const char *kRank = "PLEAT_NCCL_RANK", *kSize = "PLEAT_NCCL_SIZE", *kFolder = "PLEAT_NCCL_FOLDER",
                     *kArgument = "PLEAT_NCCL_ARGUMENT";

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
                         const std::string& argument, double seconds) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<std::unique_ptr<PleatProcess>> ranks;
  const std::string room = fmt::format("{}/{}", folder, rank_test + argument);
  std::filesystem::create_directories(room);
  for (int r = 0; r < size; ++r) {
    const std::string own = fmt::format("{}/rank{}", room, r);
    std::filesystem::create_directories(own);
    ranks.push_back(std::make_unique<PleatProcess>(
        own,
        std::vector<std::string>{fmt::format("{}={}", kRank, r), fmt::format("{}={}", kSize, size),
                                 fmt::format("{}={}", kFolder, room),
                                 fmt::format("{}={}", kArgument, argument), self,
                                 "--gtest_also_run_disabled_tests", "--gtest_brief=1",
                                 "--gtest_filter=NcclRank.DISABLED_" + rank_test},
        "/usr/bin/env"));
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto any_runs = [&] {
    bool any = false;
    for (const auto& rank : ranks) any |= rank->running();
    return any;
  };
  while (any_runs() && seconds_since(begin) < seconds)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  NcclEnded ended;
  for (const auto& rank : ranks) {
    if (rank->running()) rank->send(SIGKILL);
    const Ended one = rank->wait();
    ended.codes.push_back(one.code);
    ended.said.push_back(one.out + one.err);
  }
  return ended;
}

struct NcclRank::Board {
  std::atomic<uint32_t> claim;
  std::atomic<uint32_t> num_started, num_ended;
  comm::RankFlight flights[kMaxRanks];
};

bool NcclRank::is_one() { return !said_by_environment(kRank).empty(); }

NcclRank::NcclRank(double timeout_seconds)
    : folder_(said_by_environment(kFolder)), argument_(said_by_environment(kArgument)) {
  rank_ = std::stoi(said_by_environment(kRank));
  size_ = std::stoi(said_by_environment(kSize));
  const int file = ::open((folder_ + "/board").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  PLEAT_CHECK(file >= 0 && size_ <= kMaxRanks && ::ftruncate(file, sizeof(Board)) == 0, "no board in {}",
              folder_);
  void* at = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  PLEAT_CHECK(at != MAP_FAILED, "no memory for the board");
  board_ = static_cast<Board*>(at);  // zeroes are its beginning
  board_->flights[rank_].start(getpid());
  staged_.start(getpid());
  // Nobody may look for a process that has not said who it is.
  ++board_->num_started;
  while (board_->num_started < static_cast<uint32_t>(size_))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  comm::Watchdog::View view;
  for (int r = 0; r < size_; ++r) view.flights.push_back(&board_->flights[r]);
  view.own = {rank_};
  view.processes = true;
  view.claim = &board_->claim;
  comm::Options options;
  options.timeout_seconds = timeout_seconds;
  watchdog_ = std::make_unique<comm::Watchdog>(view, options);
}

void NcclRank::wait_for_all() {
  ++board_->num_ended;
  while (board_->num_ended < static_cast<uint32_t>(size_))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

NcclRank::~NcclRank() {
  inner_.clear();
  board_->flights[rank_].leave();
}

std::unique_ptr<comm::Communicator> NcclRank::group(const std::string& name, std::span<const int> ranks,
                                                    comm::Buffers buffers, void* stream) {
  watchdog_->add_group(name, ranks);
  // A name may be opened again, by all its ranks.
  const std::string path =
      fmt::format("{}/id{:016x}.{}", folder_, comm::group_hash(name, ranks), num_opened_[name]++);
  comm::NcclId id;
  if (ranks.front() == rank_) {
    id = comm::make_nccl_id();
    write_file(path + ".new", std::string(reinterpret_cast<const char*>(id.data()), id.size()));
    std::filesystem::rename(path + ".new", path);
  } else {
    while (!std::filesystem::exists(path)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::string text = read_file(path);
    PLEAT_CHECK(text.size() == id.size(), "no id in {}", path);
    std::memcpy(id.data(), text.data(), id.size());
  }
  const int member = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin());
  const bool on_host = buffers == comm::Buffers::Host;
  if (on_host) {
    lanes_.push_back(std::make_unique<device::cuda::Lane>());
    stream = lanes_.back()->stream();
  }
  auto made =
      comm::make_nccl_group(name, {ranks.begin(), ranks.end()}, member, id, stream, board_->flights[rank_]);
  if (!on_host) return made;
  inner_.push_back(std::move(made));
  return staged(*inner_.back(), staged_);
}

}  // namespace pleat::testing
