// Algorithms of dense products go from one run to another by a file.
#include <gtest/gtest.h>

#include <fstream>

#include "base/posix_vfs.h"
#include "base/vfs.h"
#include "cuda/cuda_support.h"
#include "kernels/cuda/choices.h"
#include "resume/resume_support.h"
#include "train/loop.h"
#include "train/matmul_choices.h"

namespace pleat::train {
namespace {

class CudaChoices : public ::testing::Test {
 protected:
  config::Config config(const std::string& run_dir, const std::string& choices) const {
    return config::parse(
        testing::run_toml(folder_.at("data"), folder_.at(run_dir), 5),
        {"device.kind=\"cuda\"", "model.dtype=\"bfloat16\"", "device.matmul_choices=\"" + choices + "\""});
  }
  LoopResult run(const std::string& run_dir, const std::string& choices) const {
    kernels::use_matmul_choices({});
    LoopOptions options;
    options.quiet = true;
    return run_training(config(run_dir, choices), options);
  }
  std::string file_of(const std::string& run_dir) const {
    return folder_.at(run_dir) + "/" + kMatmulChoicesFile;
  }
  testing::TemporaryFolder folder_;
};

TEST_F(CudaChoices, TheFileOfAnotherRunGivesItsBits) {
  PLEAT_NEEDS_GPU();
  testing::write_dataset(folder_.at("data"), 6000, 7);
  const LoopResult first = run("first", "");
  const int64_t measured = kernels::num_matmuls_measured();
  const LoopResult second = run("second", file_of("first"));
  EXPECT_EQ(kernels::num_matmuls_measured(), measured) << "measured again what the file holds";
  EXPECT_EQ(second.state_sha256, first.state_sha256);
}

TEST_F(CudaChoices, AFileOfAnotherDeviceIsRefused) {
  PLEAT_NEEDS_GPU();
  testing::write_dataset(folder_.at("data"), 6000, 7);
  run("first", "");
  base::PosixVfs vfs;
  SavedChoices saved =
      choices_from_json(base::read_file(vfs, file_of("first"), kMaxMatmulChoicesBytes), "first");
  saved.machine.device = "another device";
  const std::string other = folder_.at("other.json");
  std::ofstream(other) << to_json(saved);
  try {
    run("second", other);
    ADD_FAILURE() << "accepted";
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("another device"), std::string::npos) << e.what();
  }
  kernels::use_matmul_choices({});
}

}  // namespace
}  // namespace pleat::train
