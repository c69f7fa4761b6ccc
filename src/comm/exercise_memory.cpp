#include "comm/exercise_memory.h"

#include <algorithm>
#include <cstring>

#include "device/cuda/chosen.h"
#include "device/cuda/cuda.h"
#include "device/cuda/query.h"

namespace pleat::comm {
namespace {

class ExerciseHost final : public ExerciseMemory {
 public:
  std::byte* allocate(int64_t bytes) override {
    blocks_.push_back(std::make_unique<std::byte[]>(static_cast<size_t>(bytes)));
    return blocks_.back().get();
  }
  void write(std::byte* to, const void* from, int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void read(void* to, const std::byte* from, int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void wait(Communicator& group) override {
    while (!group.watch()) continue;
  }
  void* stream() const override { return nullptr; }

 private:
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
};

class ExerciseGpu final : public ExerciseMemory {
 public:
  ExerciseGpu() {
    device::cuda::enter_device();
    lane_ = std::make_unique<device::cuda::Lane>();
  }
  std::byte* allocate(int64_t bytes) override {
    blocks_.push_back(std::make_unique<device::cuda::Memory>(std::max<int64_t>(bytes, 256)));
    return blocks_.back()->data();
  }
  void write(std::byte* to, const void* from, int64_t bytes) override {
    lane_->copy_in(to, from, bytes);
    lane_->synchronize();
  }
  void read(void* to, const std::byte* from, int64_t bytes) override {
    lane_->copy_out(to, from, bytes);
    lane_->synchronize();
  }
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override { lane_->copy(to, from, bytes); }
  // Without sleeping: latencies are a few microseconds.
  void wait(Communicator& group) override {
    while (!device::cuda::is_done(*lane_)) group.watch();
    group.watch();
  }
  void* stream() const override { return lane_->stream(); }

 private:
  std::unique_ptr<device::cuda::Lane> lane_;
  std::vector<std::unique_ptr<device::cuda::Memory>> blocks_;
};

}  // namespace

std::unique_ptr<ExerciseMemory> exercise_on_host() { return std::make_unique<ExerciseHost>(); }
std::unique_ptr<ExerciseMemory> exercise_on_gpu() { return std::make_unique<ExerciseGpu>(); }

}  // namespace pleat::comm
