// One text of many ranks is said once; no other is lost.
#include "comm/process/said.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace pleat::comm {
namespace {

TEST(Said, TheSameTextIsSaidByTheFirstAndEveryOtherTextToo) {
  const Said said;
  ASSERT_GE(said.descriptor(), 0);
  EXPECT_EQ(said_before(said.descriptor(), "no such file", 2), std::nullopt);
  EXPECT_EQ(said_before(said.descriptor(), "no such file", 0), 2);
  EXPECT_EQ(said_before(said.descriptor(), "no such file.", 1), std::nullopt);
  EXPECT_EQ(said_before(said.descriptor(), "no such file.", 3), 1);
  const Said another;  // of the next start
  EXPECT_EQ(said_before(another.descriptor(), "no such file", 0), std::nullopt);
}

TEST(Said, WhereThereIsNoRoomForMoreEverybodySpeaks) {
  const Said said;
  for (int i = 0; i < 1000; ++i)
    EXPECT_EQ(said_before(said.descriptor(), fmt::format("error {}", i), 0), std::nullopt);
  EXPECT_EQ(said_before(said.descriptor(), "error 0", 1), 0);
  EXPECT_EQ(said_before(said.descriptor(), "error 999", 1), std::nullopt);
}

TEST(Said, AnotherFilesDescriptorIsLeftAlone) {
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  for (const int descriptor : {-1, pipe[0], pipe[1], 1 << 20})
    for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(said_before(descriptor, "text", rank), std::nullopt);
  ::close(pipe[0]), ::close(pipe[1]);
}

}  // namespace
}  // namespace pleat::comm
