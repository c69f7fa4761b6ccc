// What a GPU keeps goes to files and comes from them through two buffers on the host: in pieces smaller than its tensors,
// to the same bits, with no memory of the state's size. The analogue on the CPU is tests/resume/staged_test.cpp.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <random>
#include <thread>

#include "base/posix_vfs.h"
#include "base/sim_vfs.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "cuda/cuda_support.h"
#include "resume/resume_support.h"
#include "runtime/cuda_carrier.h"
#include "runtime/two_spaces_support.h"
#include "train/memory.h"

namespace pleat::train {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

runtime::MakeCarrier buffers_of(int64_t bytes) {
  return [bytes](interpret::CudaMachine* machine, std::span<std::byte>) {
    return std::make_unique<runtime::CudaCarrier>(*machine, runtime::CudaCarrier::kBuffers * bytes);
  };
}

TEST(CudaStaging, DeviceMemoryIsReadAndWrittenInPieces) {
  PLEAT_NEEDS_GPU();
  constexpr int64_t kSize = 3 * kMiB + 77;
  std::mt19937 rng(5);
  std::vector<std::byte> numbers(kSize), there(kSize);
  for (std::byte& b : numbers) b = static_cast<std::byte>(rng());
  for (const int64_t buffer : {int64_t{4096}, int64_t{100} * 256, kMiB, 8 * kMiB}) {
    interpret::CudaMachine machine(kSize + 10);
    runtime::CudaCarrier carrier(machine, 2 * buffer);
    checkpoint::StagedMemory memory(carrier);
    machine.fill(0, 0x5A, kSize + 10);
    const checkpoint::Bytes all(memory, 5, kSize);
    all.write(0, numbers);
    machine.read(5, there.data(), kSize);
    EXPECT_EQ(there, numbers);
    EXPECT_EQ(all.copy(), numbers);
    std::byte edge[2];
    machine.read(4, &edge[0], 1), machine.read(5 + kSize, &edge[1], 1);
    EXPECT_EQ(edge[0], std::byte{0x5A});
    EXPECT_EQ(edge[1], std::byte{0x5A});
    // Another reader sees what was changed meanwhile.
    machine.fill(5, 0x11, kSize);
    EXPECT_EQ(all.copy(), std::vector<std::byte>(kSize, std::byte{0x11}));
    all.zero();
    EXPECT_EQ(all.copy(), std::vector<std::byte>(kSize));
  }
}

TEST(CudaStaging, StateInTwoSpacesIsSavedAndRestoredWhereItLies) {
  PLEAT_NEEDS_GPU();
  runtime::testing::check_state_in_two_spaces(runtime::Device::Cuda, {});
  for (const int64_t buffer : {int64_t{256}, int64_t{4096}})
    runtime::testing::check_state_in_two_spaces(runtime::Device::Cuda, buffers_of(buffer));
}

// The most memory of its own that this process has while it looks.
class Peak {
 public:
  Peak() {
    thread_ = std::thread([this] {
      while (!done_) {
        most_ = std::max(most_.load(), process_memory().anonymous_bytes);
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    });
  }
  int64_t stop() {
    done_ = true;
    thread_.join();
    return most_;
  }

 private:
  std::atomic<bool> done_ = false;
  std::atomic<int64_t> most_ = 0;
  std::thread thread_;
};

class CudaStagedRun : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kernels::testing::no_gpu().empty()) testing::write_dataset(folder_.at("data"), 18 * 32 + 9, 7);
  }
  config::Config config(std::vector<std::string> sets) const {
    sets.insert(sets.end(), {"device.kind=\"cuda\"", "model.dtype=\"bfloat16\""});
    return testing::resolved_config(folder_, 12, sets);
  }
  static std::vector<std::string> digests(Trainer& trainer, int64_t num_steps) {
    std::vector<std::string> out;
    for (int64_t i = 0; i < num_steps; ++i) trainer.step(), out.push_back(trainer.state_sha256());
    return out;
  }
  testing::TemporaryFolder folder_;
};

TEST_F(CudaStagedRun, EveryStepAndEveryResumeHasTheSameBits) {
  PLEAT_NEEDS_GPU();
  const TrainerHooks hooks = testing::faults_at({2});
  runtime::ProgramChoice small;
  small.carrier = buffers_of(1024);
  Trainer direct(config({}), {}, hooks), staged(config({}), small, hooks);
  EXPECT_EQ(staged.state_sha256(), direct.state_sha256()) << "before the first step";
  const std::vector<std::string> expected = digests(direct, 8);
  EXPECT_EQ(digests(staged, 4), std::vector<std::string>(expected.begin(), expected.begin() + 4));
  base::SimVfs vfs;
  const checkpoint::SaveResult saved = staged.save(vfs, "run", {});
  const std::vector<std::string> later(expected.begin() + 4, expected.end());
  for (const runtime::ProgramChoice& choice : {runtime::ProgramChoice{}, small}) {
    Trainer second(config({}), choice, hooks);
    second.restore(checkpoint::open(vfs, saved.path));
    EXPECT_EQ(digests(second, 4), later);
  }
}

// State of 0.9 GiB more takes nothing more of the host: from the first weights on, through a save and a resume.
TEST_F(CudaStagedRun, HostMemoryDoesNotGrowWithTheState) {
  PLEAT_NEEDS_GPU();
  base::PosixVfs vfs;
  // An allocation of the driver's or a library's first use is nobody's state: a small run comes first and last.
  const auto peak_of = [&](int64_t experts) {
    const config::Config c = config({fmt::format("moe.num_experts={}", experts), "model.hidden_size=512",
                                     "moe.ffn_hidden_size=1024", "moe.shared_ffn_hidden_size=16"});
    std::filesystem::create_directories(folder_.at("saved"));
    int64_t state = 0;
    std::string path;
    Peak peak;
    {
      Trainer trainer(c);
      for (const checkpoint::TensorRef& t : trainer.programs().tensors()) state += t.bytes.size();
      trainer.step();
      path = trainer.save(vfs, folder_.at("saved"), {}).path;
    }
    Trainer again(c);
    again.restore(checkpoint::open(vfs, path));
    std::filesystem::remove_all(folder_.at("saved"));
    return std::pair(state, peak.stop());
  };
  peak_of(8);
  const std::pair<int64_t, int64_t> small = peak_of(8), large = peak_of(32);
  EXPECT_GT(large.first - small.first, 850 * kMiB);
  EXPECT_LT(large.second - small.second, 300 * kMiB);
}

}  // namespace
}  // namespace pleat::train
