// Every command line of README.md, CONTRIBUTING.md and docs/ is run, page by page, in order, in a fresh folder. What
// this machine cannot run is planned and parsed instead. tour_support.h says how a page marks its blocks.
#include <gtest/gtest.h>

#include <filesystem>

#include "support/process.h"
#include "tour/tour_support.h"

namespace pleat {
namespace {

using testing::TemporaryFolder;
using testing::TourPage;

std::vector<std::string> pages() {
  std::vector<std::string> out = {"README.md", "CONTRIBUTING.md"};
  for (const auto& entry : std::filesystem::directory_iterator(PLEAT_SOURCE_DIR "/docs"))
    if (entry.path().extension() == ".md") out.push_back("docs/" + entry.path().filename().string());
  std::sort(out.begin() + 2, out.end());
  return out;
}

class Tour : public ::testing::TestWithParam<std::string> {};

TEST_P(Tour, EveryCommandRuns) {
  const TemporaryFolder folder, other;
  const std::string text = testing::read_file(PLEAT_SOURCE_DIR "/" + GetParam());
  const TourPage page = testing::read_tour(GetParam(), text);
  for (const std::string& fault : page.faults) ADD_FAILURE() << fault;
  for (const std::string& fault : testing::check_inline_commands(GetParam(), text, other.path()))
    ADD_FAILURE() << fault;
  if (!page.commands.empty()) {
    const std::string trouble = testing::run_tour(page, folder.path());
    EXPECT_TRUE(trouble.empty()) << trouble;
  }
  if (std::getenv("PLEAT_TOUR_LOG")) fmt::print("{}", testing::read_file(folder.at("build/tour.log")));
}

INSTANTIATE_TEST_SUITE_P(Documents, Tour, ::testing::ValuesIn(pages()), [](const auto& info) {
  std::string name = info.param.substr(info.param.rfind('/') + 1);
  return name.substr(0, name.size() - 3);
});

std::string outcome(const std::string& text) {
  const TourPage page = testing::read_tour("page.md", text);
  if (!page.faults.empty()) return page.faults.front();
  const TemporaryFolder folder;
  return testing::run_tour(page, folder.path());
}

TEST(TourItself, FindsWhatIsWrong) {
  EXPECT_EQ(outcome("```sh\npleat flops configs/tiny.toml --set model.vocab_size=256 \\\n  --json\n```\n"),
            "");
  EXPECT_NE(outcome("```\npleat plan x\n```\n").find("page.md:1"), std::string::npos);
  const std::string failed = outcome("```sh\necho first\npleat plan none.toml  # a comment\n```\n");
  EXPECT_NE(failed.find("page.md:3"), std::string::npos) << failed;
  EXPECT_NE(failed.find("none.toml"), std::string::npos) << failed;
  EXPECT_NE(outcome("```sh\nno_such_program\n```\n").find("code 127"), std::string::npos);
  EXPECT_NE(outcome("```sh\n./dev test\n```\n").find("mark the block"), std::string::npos);
  EXPECT_NE(outcome("<!-- runs on: a GPU -->\nwords\n").find("no fenced block"), std::string::npos);
  EXPECT_NE(outcome("    pleat plan x\n").find("outside a block"), std::string::npos);
}

TEST(TourItself, PlansWhatItCannotRun) {
  EXPECT_EQ(outcome("<!-- runs on: a GPU -->\n```sh\nnvidia-smi\nbuild/cuda/pleat train configs/tiny.toml "
                    "--set device.kind=cuda\n```\n"),
            "");
  EXPECT_EQ(outcome("<!-- runs on: 2 ranks -->\n```sh\nmpirun -n 2 pleat train configs/tiny.toml --set "
                    "parallel.pp=2\n```\n"),
            "");
  EXPECT_NE(outcome("<!-- runs on: a GPU -->\n```sh\npleat train configs/tiny.toml --set moe.topk=1\n```\n")
                .find("moe.topk"),
            std::string::npos);
  EXPECT_NE(outcome("<!-- runs on: 2 ranks -->\n```sh\nmpirun -n 2 pleat train configs/tiny.toml --set "
                    "parallel.pp=4\n```\n"),
            "");
  EXPECT_NE(outcome("<!-- runs on: a GPU -->\n```sh\npleat bench kernels --filtr x\n```\n").find("--filtr"),
            std::string::npos);
  EXPECT_NE(outcome("<!-- runs on: a quiet hour -->\n```sh\n./dev tset\n```\n").find("tset"),
            std::string::npos);
}

TEST(TourItself, MarksChangeHowABlockRuns) {
  EXPECT_EQ(outcome("<!-- first: echo text > notes.txt -->\n```sh\ncat notes.txt\n```\n"), "");
  EXPECT_EQ(outcome("<!-- file: a.toml -->\n```toml\n[train]\nsteps = 3\n```\nThen:\n\n```sh\ngrep -q 'steps "
                    "= 3' a.toml\n```\n"),
            "");
  EXPECT_EQ(outcome("<!-- exits: 65 -->\n```sh\npleat plan none.toml\n```\n"), "");
  EXPECT_NE(outcome("<!-- with: --set train.steps=0 -->\n```sh\npleat train configs/tiny.toml\n```\n")
                .find("train.steps"),
            std::string::npos);
  EXPECT_EQ(outcome("```sh\ncat > a.txt << 'END'\nwords `of` a $file\nEND\ngrep -q file a.txt\n```\n"), "");
}

}  // namespace
}  // namespace pleat
