// Runs in a folder that goes away, started as a user does: by the binary, with relative names.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/hash.h"
#include "resume/resume_support.h"

namespace pleat::train {

namespace fs = std::filesystem;
using pleat::testing::Ended;
using pleat::testing::PleatProcess;
using pleat::testing::read_file;
using pleat::testing::run_pleat;
using pleat::testing::write_file;

// Every file below a folder with the digest of its bytes.
inline std::map<std::string, std::string> tree(const std::string& folder) {
  std::map<std::string, std::string> out;
  for (const fs::directory_entry& e : fs::recursive_directory_iterator(folder))
    out[e.path().string()] =
        e.is_regular_file() ? base::to_hex(base::sha256(read_file(e.path().string()))) : "";
  return out;
}

// The current directory for a while.
struct Inside {
  explicit Inside(const fs::path& path) { fs::current_path(path); }
  ~Inside() { fs::current_path(before); }
  fs::path before = fs::current_path();
};

class RunFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    write_file(at("notes.txt"), testing::made_up_text(6000, 3));
    std::string toml = testing::run_toml("notes.txt", "first", 6);
    toml += "data.separator = \"\\n\\n\"\ndata.valid_split = 0.2\n";
    write_file(at("run.toml"), toml);
  }

  std::string at(const std::string& name) const { return folder_.at(name); }
  Ended pleat(std::vector<std::string> arguments) { return run_pleat(folder_.path(), arguments); }
  // Trains with relative names, from inside the folder.
  Ended train(std::vector<std::string> arguments, const std::string& sets = "") {
    const Inside here(folder_.path());
    arguments.insert(arguments.begin(), "train");
    std::stringstream words(sets);
    for (std::string set; words >> set;) arguments.insert(arguments.end(), {"--set", set});
    return pleat(arguments);
  }
  nlohmann::json summary(const std::string& run) {
    return nlohmann::json::parse(read_file(at(run + "/summary.json")));
  }
  std::string state(const std::string& run) { return summary(run).at("state_sha256"); }
  static void expect(const Ended& ended, int code, const std::vector<std::string>& words = {}) {
    EXPECT_EQ(ended.code, code) << ended.out << ended.err;
    for (const std::string& word : words)
      EXPECT_NE((ended.out + ended.err).find(word), std::string::npos) << word << "\n"
                                                                       << ended.out << ended.err;
  }

  testing::TemporaryFolder folder_;
};

}  // namespace pleat::train
