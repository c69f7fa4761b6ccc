// What the messages between ranks bear: peers that hang, and peers that send what no rank sends.
#include "comm/tcp/mesh.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <memory>
#include <thread>

#include "base/error.h"

namespace pleat::comm::tcp {
namespace {

// Rank 0 of two, and what the other end of its connection to rank 1 writes by itself.
class MeshAlone : public ::testing::Test {
 protected:
  static constexpr uint32_t kMessage = 0x4d534721, kCalled = 0x43414c4c, kTaken = 0x54414b45,
                            kGoodbye = 0x42594521;

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
  write({kMessage, 0, 7, ~uint64_t{0}, 0});
  EXPECT_EQ(await({}),
            "a test: rank 1 announced a message of 18446744073709551615 bytes, 1099511627776 at most");
  // The other side is not left waiting.
  std::byte one[1];
  std::string why;
  EXPECT_FALSE(read_all(other_, one, Clock::now() + std::chrono::seconds(5), why));
  EXPECT_EQ(why, "it closed the connection");
}

TEST_F(MeshAlone, MoreThanMayBeSentBeforeItIsAwaitedLosesThePeer) {
  write({kMessage, 0, 7, most_kept_of_peer(2), 0});
  EXPECT_EQ(why_lost(),
            "sent 16777216 bytes before they were awaited; 16777216 more were allowed, of 16777216 in all");
  EXPECT_EQ(mesh_->most_kept(), 0u);
}

TEST_F(MeshAlone, SmallMessagesCountWithWhatKeepingThemTakes) {
  const uint64_t allowed = most_kept_of_peer(2) / kKeptOverhead;
  const std::vector<Header> all(allowed + 1, {kMessage, 0, 7, 0, 0});
  write(std::as_bytes(std::span(all)));
  EXPECT_EQ(why_lost(), "sent 0 bytes before they were awaited; 0 more were allowed, of 16777216 in all");
  EXPECT_EQ(mesh_->most_kept(), most_kept_of_peer(2));
}

TEST_F(MeshAlone, WhatNobodyCalledForLosesThePeer) {
  write({kCalled, 0, 7, 5, 3});
  EXPECT_EQ(why_lost(), "sent 5 bytes that nobody called for");
}

TEST_F(MeshAlone, MoreTakenThanWasSentLosesThePeer) {
  write({kTaken, 0, 0, 1, 0});
  EXPECT_EQ(why_lost(), "says it took 1 bytes, of at most 0");
}

TEST_F(MeshAlone, AGoodbyeWithBytesIsNone) {
  write({kGoodbye, 0, 0, 8, 0});
  EXPECT_EQ(why_lost(), "announced a goodbye of 8 bytes, 0 at most");
}

TEST_F(MeshAlone, WhatIsNoMessageLosesThePeerWithTheReason) {
  write({1, 0, 0, 0, 0});
  EXPECT_EQ(why_lost(), "sent what is no message");
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
  write({kMessage, 0, 3, 0, 0});
  mesh_->meet(ranks, 3, 20, "a test");
}

// Two ranks, or more, as meshes of one process.
class Meshes {
 public:
  explicit Meshes(int size) {
    std::vector<std::vector<Socket>> sockets(static_cast<size_t>(size));
    for (auto& of_rank : sockets) of_rank.resize(static_cast<size_t>(size));
    for (size_t a = 0; a < sockets.size(); ++a)
      for (size_t b = 0; b < a; ++b) {
        int ends[2];
        EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
        sockets[a][b] = Socket(ends[0]);
        sockets[b][a] = Socket(ends[1]);
      }
    for (int r = 0; r < size; ++r)
      all_.push_back(std::make_unique<Mesh>(r, std::move(sockets[static_cast<size_t>(r)]), nullptr,
                                            [this](int, std::span<const std::byte>) { ++num_notes_; }));
  }
  ~Meshes() {
    for (const auto& mesh : all_) mesh->say_goodbye();
  }

  Mesh& operator[](int rank) { return *all_[static_cast<size_t>(rank)]; }
  int num_notes() const { return num_notes_; }

 private:
  std::atomic<int> num_notes_{0};
  std::vector<std::unique_ptr<Mesh>> all_;
};

using Words = std::vector<uint32_t>;

Words numbered(size_t bytes, uint32_t first) {
  Words words(bytes / sizeof(uint32_t));
  for (size_t i = 0; i < words.size(); ++i) words[i] = first + static_cast<uint32_t>(i * 2654435761u);
  return words;
}

void send(Mesh& mesh, int to, int tag, const Words& words) {
  mesh.send(to, 7, tag, std::as_bytes(std::span(words)), "a send");
}

void expect_from(Mesh& mesh, int from, int tag, const Words& wanted) {
  Words got(wanted.size());
  Awaited a;
  a.from = from;
  a.channel = 7;
  a.tag = tag;
  a.data = std::as_writable_bytes(std::span(got));
  mesh.post(a);
  Awaited* const all[] = {&a};
  mesh.wait(all, "a receive");
  EXPECT_TRUE(got == wanted) << "tag " << tag;
}

template <class Done>
void wait_until(const Done& done) {
  for (int i = 0; i < 2000 && !done(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(done());
}

TEST(MeshCredit, ARankKeepsABoundedAmountWhateverTheWorld) {
  for (const int size : {2, 3, 17, 257, 1024}) {
    const uint64_t all = most_kept_of_peer(size) * static_cast<uint64_t>(size - 1);
    EXPECT_LE(all, kMostKept) << size;
    EXPECT_GE(most_kept_of_peer(size), kLeastKeptOfPeer);
  }
}

// Both send more than may be kept, longer messages and shorter ones, while another lane receives.
TEST(MeshCredit, CrossingSendsOfMoreThanIsKeptCome) {
  Meshes meshes(2);
  const uint64_t limit = most_kept_of_peer(2);
  const size_t lengths[] = {limit / 2, limit / 2, 2 * limit, 4, limit, 0, limit / 4, 3 * limit};
  std::vector<std::thread> lanes;
  for (int rank = 0; rank < 2; ++rank) {
    lanes.emplace_back([&, rank] {
      for (uint32_t i = 0; i < std::size(lengths); ++i)
        send(meshes[rank], 1 - rank, 3, numbered(lengths[i], i));
    });
    lanes.emplace_back([&, rank] {
      for (uint32_t i = 0; i < std::size(lengths); ++i)
        expect_from(meshes[rank], 1 - rank, 3, numbered(lengths[i], i));
    });
  }
  for (std::thread& lane : lanes) lane.join();
  for (int rank = 0; rank < 2; ++rank) EXPECT_LE(meshes[rank].most_kept(), limit);
}

// What is used up by a message of another lane does not keep this one's from coming.
TEST(MeshCredit, AwaitsInAnotherOrderThanSendsComeByLanes) {
  Meshes meshes(2);
  const uint64_t limit = most_kept_of_peer(2);
  constexpr int kLanes = 6;
  std::vector<std::thread> lanes;
  for (int tag = 0; tag < kLanes; ++tag)
    lanes.emplace_back([&, tag] {
      for (uint32_t i = 0; i < 3; ++i) send(meshes[0], 1, tag, numbered(limit / 2, i));
    });
  wait_until([&] { return meshes[1].most_kept() > limit / 2; });
  for (int tag = kLanes - 1; tag >= 0; --tag)
    for (uint32_t i = 0; i < 3; ++i) expect_from(meshes[1], 0, tag, numbered(limit / 2, i));
  for (std::thread& lane : lanes) lane.join();
  EXPECT_LE(meshes[1].most_kept(), limit);
}

// Four times as many as may be kept; the sender waits, and nothing is lost or out of order.
TEST(MeshCredit, ManySmallMessagesKeepTheirOrderAndTheBound) {
  Meshes meshes(2);
  const uint64_t limit = most_kept_of_peer(2);
  const uint32_t num = static_cast<uint32_t>(4 * limit / (4096 + kKeptOverhead));
  std::atomic<uint32_t> sent{0};
  std::thread sender([&] {
    for (uint32_t i = 0; i < num; ++i, ++sent) send(meshes[0], 1, 0, Words(1024, i));
  });
  wait_until([&] { return meshes[1].most_kept() + 4096 + kKeptOverhead > limit; });
  EXPECT_LT(sent, num / 2);
  for (uint32_t i = 0; i < num; ++i) expect_from(meshes[1], 0, 0, Words(1024, i));
  sender.join();
  EXPECT_LE(meshes[1].most_kept(), limit);
}

// Every rank sends to every other before any receives, then in turn: what a collective of many ranks may come to.
TEST(MeshCredit, ManyPeersEachHaveTheirOwnShare) {
  constexpr int kSize = 3;
  Meshes meshes(kSize);
  const uint64_t limit = most_kept_of_peer(kSize);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kSize; ++rank)
    ranks.emplace_back([&, rank] {
      const Words mine = numbered(limit - kKeptOverhead, static_cast<uint32_t>(rank));
      for (int to = 0; to < kSize; ++to)
        if (to != rank) send(meshes[rank], to, 0, mine);
      for (int from = 0; from < kSize; ++from)
        if (from != rank)
          expect_from(meshes[rank], from, 0, numbered(limit - kKeptOverhead, static_cast<uint32_t>(from)));
    });
  for (std::thread& rank : ranks) rank.join();
}

TEST(MeshCredit, SignsOfLifePassWhileASenderWaits) {
  Meshes meshes(2);
  const uint64_t limit = most_kept_of_peer(2);
  std::thread sender([&] {
    for (uint32_t i = 0; i < 3; ++i) send(meshes[0], 1, 0, numbered(limit / 2, i));
  });
  wait_until([&] { return meshes[1].most_kept() > limit / 2 - kKeptOverhead; });
  const int before = meshes.num_notes();
  wait_until([&] {  // one is left out while a connection is busy
    meshes[0].note(1, std::as_bytes(std::span("alive")));
    meshes[1].note(0, std::as_bytes(std::span("alive")));
    return meshes.num_notes() >= before + 10;
  });
  for (uint32_t i = 0; i < 3; ++i) expect_from(meshes[1], 0, 0, numbered(limit / 2, i));
  sender.join();
}

// Announced or kept, it is the receiver who says so; the sender goes on.
TEST(MeshCredit, AnAnnouncedMessageOfAnotherLengthIsSaid) {
  Meshes meshes(2);
  const Words sent = numbered(2 * most_kept_of_peer(2), 1);
  std::thread sender([&] { send(meshes[0], 1, 0, sent); });
  Words got(sent.size() - 1);
  Awaited a;
  a.channel = 7;
  a.data = std::as_writable_bytes(std::span(got));
  meshes[1].post(a);
  Awaited* const all[] = {&a};
  try {
    meshes[1].wait(all, "a receive");
    ADD_FAILURE() << "the lengths agreed";
  } catch (const base::Error& e) {
    EXPECT_STREQ(e.what(), "a receive: rank 0 sent 33554432 bytes, 33554428 bytes awaited");
  }
  sender.join();
}

TEST(MeshCredit, ASenderThatWaitsHearsThatThePeerIsGoneOrItsOwnRankHasFailed) {
  for (const bool gone : {false, true}) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    Socket other(ends[1]);
    std::vector<Socket> peers(2);
    peers[1] = Socket(ends[0]);
    std::atomic<Mesh*> told{nullptr};
    Mesh mesh(
        0, std::move(peers), [&](int) { told.load()->call_off(); }, nullptr);
    told = &mesh;
    std::string said;
    std::thread sender([&] {
      try {
        send(mesh, 1, 0, numbered(2 * most_kept_of_peer(2), 1));
      } catch (const base::Error& e) {
        EXPECT_EQ(e.code(), base::ExitCode::Retry);
        said = e.what();
      }
    });
    Header announced;  // it waits from here on
    std::string why;
    EXPECT_TRUE(read_all(other, std::as_writable_bytes(std::span(&announced, 1)),
                         Clock::now() + std::chrono::seconds(5), why))
        << why;
    EXPECT_EQ(announced.bytes, 2 * most_kept_of_peer(2));
    if (gone)
      other.close();
    else
      mesh.call_off();
    sender.join();
    EXPECT_EQ(said, gone ? "a send: rank 1 has closed its connection: its process or its machine is gone"
                         : "a send: given up, another thread of this rank has failed");
  }
}

}  // namespace
}  // namespace pleat::comm::tcp
