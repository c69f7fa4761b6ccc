// What the messages between ranks bear: peers that hang, and peers that send what no rank sends.
#include "comm/tcp/mesh.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <thread>

#include "base/error.h"

namespace pleat::comm::tcp {
namespace {

// Rank 0 of two, and what the other end of its connection to rank 1 writes by itself.
class MeshAlone : public ::testing::Test {
 protected:
  struct Header {
    uint32_t kind, tag;
    uint64_t channel, bytes;
  };
  static constexpr uint32_t kMessage = 0x4d534721, kGoodbye = 0x42594521;

  MeshAlone() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    other_ = Socket(ends[1]);
    std::vector<Socket> peers(2);
    peers[1] = Socket(ends[0]);
    mesh_ = std::make_unique<Mesh>(
        0, std::move(peers), [this](int) { ++lost_; }, nullptr);
  }

  void write(std::span<const std::byte> bytes) {
    std::string why;
    EXPECT_TRUE(write_all(other_, bytes, Clock::now() + std::chrono::seconds(5), why)) << why;
  }
  void write(const Header& header) { write(std::as_bytes(std::span(&header, 1))); }

  // What a wait for `bytes` from rank 1 says; "" if they came.
  std::string await(std::span<std::byte> bytes) {
    Awaited a;
    a.from = 1;
    a.channel = 7;
    a.data = bytes;
    mesh_->post(a);
    Awaited* const all[] = {&a};
    try {
      mesh_->wait(all, "a test");
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ExitCode::Retry);
      return e.what();
    }
    return "";
  }

  // When rank 1 is lost.
  std::string why_lost() {
    for (int i = 0; i < 1000 && lost_ == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(lost_, 1);
    return mesh_->why_lost(1);
  }

  Socket other_;
  std::atomic<int> lost_{0};
  std::unique_ptr<Mesh> mesh_;
};

TEST_F(MeshAlone, ALengthNoMessageHasLosesThePeerWithTheReason) {
  write({kMessage, 0, 7, ~uint64_t{0}});
  EXPECT_EQ(await({}),
            "a test: rank 1 announced a message of 18446744073709551615 bytes, 1099511627776 at most");
  // The other side is not left waiting.
  std::byte one[1];
  std::string why;
  EXPECT_FALSE(read_all(other_, one, Clock::now() + std::chrono::seconds(5), why));
  EXPECT_EQ(why, "it closed the connection");
}

TEST_F(MeshAlone, ALongMessageThatDoesNotComeTakesNoMemory) {
  write({kMessage, 0, 7, Mesh::kMaxMessage});
  write(std::as_bytes(std::span("some of it")));
  other_.close();
  EXPECT_EQ(why_lost(), "");
}

TEST_F(MeshAlone, AGoodbyeWithBytesIsNone) {
  write({kGoodbye, 0, 0, 8});
  EXPECT_EQ(why_lost(), "announced a goodbye of 8 bytes, 0 at most");
}

TEST_F(MeshAlone, WhatIsNoMessageLosesThePeerWithTheReason) {
  write({1, 0, 0, 0});
  EXPECT_EQ(why_lost(), "sent what is no message");
}

// Longer than the room that is made before its bytes come, and nobody waits for it yet.
TEST_F(MeshAlone, AMessageThatIsKeptGrowsAsItComes) {
  std::vector<std::byte> sent((size_t{65} << 20) + 3), got(sent.size());
  for (size_t i = 0; i < sent.size(); i += 4093) sent[i] = static_cast<std::byte>(i / 4093);
  sent.back() = std::byte{9};
  write({kMessage, 0, 7, sent.size()});
  write(sent);
  EXPECT_EQ(await(got), "");
  EXPECT_TRUE(sent == got);
}

TEST_F(MeshAlone, WhoDoesNotComeToAMeetingIsNamedAtTheDeadline) {
  const int ranks[] = {0, 1};
  try {
    mesh_->meet(ranks, 3, 0.1, "a test");
    FAIL() << "nobody was missing";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ExitCode::Retry);
    EXPECT_STREQ(e.what(), "a test: these ranks have not come: 1");
  }
}

TEST_F(MeshAlone, AMeetingEndsSoonAfterTheRankIsAskedToStop) {
  const int ranks[] = {0, 1};
  const auto begin = Clock::now();
  try {
    mesh_->meet(ranks, 3, 60, "a test",
                [&] { return Clock::now() > begin + std::chrono::milliseconds(100); });
    FAIL() << "nobody was missing";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ExitCode::Retry);
    EXPECT_STREQ(e.what(), "a test: asked to stop, and these ranks have not come: 1");
  }
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(1));
}

TEST_F(MeshAlone, AMeetingEndsWhenAllHaveCome) {
  const int ranks[] = {0, 1};
  write({kMessage, 0, 3, 0});
  mesh_->meet(ranks, 3, 20, "a test");
}

}  // namespace
}  // namespace pleat::comm::tcp
