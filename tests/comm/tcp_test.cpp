// How ranks find each other over TCP, and what they say when one cannot: each rank is a thread with a door of its own.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "base/error.h"
#include "comm/comm_support.h"
#include "comm/door.h"
#include "comm/gpu_choice.h"
#include "comm/tcp/handshake.h"
#include "comm/tcp/mesh.h"
#include "comm/tcp/shared_memory.h"
#include "comm/tcp/tcp_world.h"

namespace pleat::comm {
namespace {

using tcp::Clock;
using tcp::Door;
using tcp::Socket;

Clock::time_point in(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// A port that listens already, so that no test waits for another's.
struct Place {
  Socket listening = tcp::listen_at(0);
  int port = tcp::port_of(listening);

  Door door(int rank, int size, const std::string& token = "token") {
    Door d{rank, size, "127.0.0.1", port, token, -1};
    if (rank == 0) d.listening = listening.release();
    return d;
  }
};

// What each door's rank says: "" where it has met the others, else its error.
std::vector<std::string> meet_all(const std::vector<Door>& doors, double seconds,
                                  const std::function<bool()>& called_off = {}) {
  std::vector<std::string> said(doors.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < doors.size(); ++i)
    threads.emplace_back([&, i] {
      try {
        const tcp::Met met = tcp::meet(doors[i], seconds, called_off);
        for (int r = 0; r < doors[i].size; ++r)
          if (static_cast<bool>(met.peers[static_cast<size_t>(r)]) == (r == doors[i].rank))
            said[i] = "wrong peers";
      } catch (const base::Error& e) {
        EXPECT_EQ(e.code(), base::ExitCode::Retry);
        said[i] = e.what();
      }
    });
  for (std::thread& t : threads) t.join();
  return said;
}

void expect_in(const std::string& words, const std::string& text) {
  EXPECT_NE(text.find(words), std::string::npos) << "'" << words << "' in: " << text;
}

TEST(Rendezvous, AllMeetInAnyOrder) {
  for (const int size : {2, 3, 7}) {
    Place place;
    std::vector<Door> doors;
    for (int r = size - 1; r >= 0; --r) doors.push_back(place.door(r, size));
    for (const std::string& said : meet_all(doors, 20)) EXPECT_EQ(said, "");
  }
}

TEST(Rendezvous, WhoIsMissingIsNamed) {
  Place place;
  const auto said = meet_all({place.door(0, 4), place.door(2, 4)}, 0.5);
  expect_in("these ranks have not come: 1, 3", said[0]);
  expect_in("rank 2 waited at rank 0 for the others to come", said[1]);
}

// Whoever waits, and for whatever: for others to come, at rank 0 for them, or for somebody to listen.
TEST(Rendezvous, ARankThatIsAskedToStopWaitsNoLonger) {
  Place place, nowhere;
  const Door unreachable = nowhere.door(1, 2);
  nowhere.listening.close();
  const auto asked = in(0.3);
  const auto begin = Clock::now();
  const auto said =
      meet_all({place.door(0, 4), place.door(2, 4), unreachable}, 60, [&] { return Clock::now() >= asked; });
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(), 0.3 + 1);
  expect_in("rank 0 of 4 was asked to stop while it waited at port", said[0]);
  expect_in("for these ranks to come: 1, 3", said[0]);
  expect_in("rank 2 ", said[1]);  // asked itself, or rank 0 was gone by then
  expect_in("rank 1 of 2 was asked to stop while it waited at 127.0.0.1:", said[2]);
}

TEST(Rendezvous, NobodyListens) {
  Place place;
  const Door alone = place.door(1, 2);
  place.listening.close();
  const auto said = meet_all({alone}, 0.3);
  expect_in("rank 1 cannot reach rank 0 at 127.0.0.1:" + std::to_string(alone.port), said[0]);
  expect_in("refused", said[0]);
}

// None of them keeps the ranks of the job from meeting.
TEST(Rendezvous, StrangersAreTurnedAway) {
  Place place;
  const int port = place.port;
  std::vector<std::thread> strangers;
  std::atomic<int> turned_away{0};
  const auto stranger = [&](std::function<void(const Socket&)> talk) {
    strangers.emplace_back([&turned_away, talk, port] {
      const Socket socket = tcp::connect_to("127.0.0.1", port, in(5));
      talk(socket);
      std::byte rest[256];
      for (;;) {  // until the other side closes
        if (!tcp::wait_for(socket.descriptor(), POLLIN, in(10))) return;
        if (::recv(socket.descriptor(), rest, sizeof rest, 0) <= 0) break;
      }
      ++turned_away;
    });
  };
  stranger([&](const Socket& s) {
    const std::string web = "GET / HTTP/1.1\r\nHost: here\r\n\r\n";
    std::string ignored;
    tcp::write_all(s, std::as_bytes(std::span(web)), in(1), ignored);
  });
  stranger([&](const Socket& s) {  // half a word, then nothing
    std::string ignored;
    tcp::write_all(s, std::as_bytes(std::span(tcp::kMagic)).first(3), in(1), ignored);
    ::shutdown(s.descriptor(), SHUT_WR);
  });
  stranger([&](const Socket& s) {  // the right words without the token
    tcp::Hello hello;
    hello.rank = 1;
    hello.size = 2;
    std::string ignored;
    tcp::write_all(s, std::as_bytes(std::span(&hello, 1)), in(1), ignored);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  for (const std::string& said : meet_all({place.door(0, 2), place.door(1, 2)}, 20)) EXPECT_EQ(said, "");
  for (std::thread& t : strangers) t.join();
  EXPECT_EQ(turned_away, 3);
}

TEST(Rendezvous, AWrongTokenIsRefusedAndSaidSo) {
  Place place;
  const auto said = meet_all({place.door(0, 2), place.door(1, 2, "another job's")}, 0.8);
  expect_in("these ranks have not come: 1; turned away: 127.0.0.1 (has another job's token)", said[0]);
  expect_in("another job listens here: the tokens differ", said[1]);
}

TEST(Rendezvous, AnotherSizeAndARankTwiceAreRefused) {
  Place place;
  Door other = place.door(1, 3);
  const auto sizes = meet_all({place.door(0, 2), other}, 0.8);
  expect_in("says the world has 3 ranks", sizes[0]);
  expect_in("the world has 2 ranks, not 3", sizes[1]);
  Place again;
  const auto twice = meet_all({again.door(0, 3), again.door(1, 3), again.door(1, 3)}, 0.8);
  expect_in("two processes were given one rank", twice[1] + twice[2]);
}

TEST(Rendezvous, AnotherVersionIsRefused) {
  Place place;
  std::string heard;
  std::thread stranger([&, port = place.port] {
    const Socket s = tcp::connect_to("127.0.0.1", port, in(5));
    tcp::Hello hello;
    hello.version = 99;
    std::string why;
    tcp::write_all(s, std::as_bytes(std::span(&hello, 1)), in(1), why);
    tcp::Greeting greeting;
    tcp::Answer answer;
    EXPECT_TRUE(tcp::read_all(s, std::as_writable_bytes(std::span(&greeting, 1)), in(5), why)) << why;
    EXPECT_TRUE(tcp::read_all(s, std::as_writable_bytes(std::span(&answer, 1)), in(5), why)) << why;
    heard = answer.why;
  });
  const auto said = meet_all({place.door(0, 2)}, 0.8);
  stranger.join();
  expect_in("speaks version 99", said[0]);
  expect_in("all ranks need one build", heard);
}

TEST(Rendezvous, ARankOutsideTheWorldIsToldSo) {
  Place place;
  std::string heard;
  std::thread stranger([&, port = place.port] {
    const Socket s = tcp::connect_to("127.0.0.1", port, in(5));
    tcp::Hello hello;
    hello.rank = 7;
    hello.size = 2;
    try {
      tcp::introduce(s, hello, 0, "token", in(5), "here");
    } catch (const base::Error& e) {
      heard = e.what();
    }
  });
  const auto said = meet_all({place.door(0, 2)}, 0.8);
  stranger.join();
  expect_in("says it is rank 7, outside the world", said[0]);
  EXPECT_EQ(heard, "here: rank 7 is outside a world of 2 ranks: they are 0 to 1");
}

TEST(Rendezvous, ARefusalIsOneLineWhateverThePeerSays) {
  Place place;
  const Socket listening = std::move(place.listening);
  std::thread stranger([&] {
    std::string why;
    EXPECT_TRUE(tcp::wait_for(listening.descriptor(), POLLIN, in(5)));
    const Socket s = tcp::accept_from(listening, why);
    const tcp::Greeting greeting;
    tcp::Hello hello;
    tcp::Answer answer;
    std::strcpy(answer.why, "no\npleat: \x1b[31mall is well\r\tx");
    EXPECT_TRUE(tcp::write_all(s, std::as_bytes(std::span(&greeting, 1)), in(5), why)) << why;
    EXPECT_TRUE(tcp::read_all(s, std::as_writable_bytes(std::span(&hello, 1)), in(5), why)) << why;
    EXPECT_TRUE(tcp::write_all(s, std::as_bytes(std::span(&answer, 1)), in(5), why)) << why;
  });
  const auto said = meet_all({Door{1, 2, "127.0.0.1", place.port, "token", -1}}, 5);
  stranger.join();
  expect_in("no\\npleat: \\x1b[31mall is well", said[0]);
  for (const char c : said[0]) EXPECT_GE(c, ' ') << said[0];
}

// More of them than are heard at once, and each would be heard for longer than the ranks have.
TEST(Rendezvous, SilentStrangersDoNotKeepRanksOut) {
  Place place;
  const Door first = place.door(0, 2), second = place.door(1, 2);
  std::string said;
  std::thread listens([&] { said = meet_all({first}, 3.5)[0]; });
  std::vector<Socket> strangers;
  for (int i = 0; i < 300; ++i) strangers.push_back(tcp::connect_to("127.0.0.1", place.port, in(3)));
  EXPECT_EQ(meet_all({second}, 3)[0], "");
  listens.join();
  EXPECT_EQ(said, "");
}

TEST(Rendezvous, TooManyOpenFilesAreSaidAtOnce) {
  Place place;
  const Door first = place.door(0, 2);
  const Socket waits = tcp::connect_to("127.0.0.1", place.port, in(5));
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  // As many as are open: a new descriptor has the lowest number that is free.
  const Socket lowest(::dup(waits.descriptor()));
  rlimit low = limit;
  low.rlim_cur = static_cast<rlim_t>(lowest.descriptor()) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  const auto began = Clock::now();
  const auto said = meet_all({first}, 20);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  expect_in(fmt::format("rank 0 cannot let other ranks in at port {}: too many open files (ulimit -n {})",
                        place.port, low.rlim_cur),
            said[0]);
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(10));
}

TEST(Rendezvous, EachStartHasItsOwnNumberAndAllRanksKnowIt) {
  std::vector<tcp::Nonce> seen;
  for (int start = 0; start < 2; ++start) {
    Place place;
    const Door first = place.door(0, 2), second = place.door(1, 2);
    tcp::Nonce other{};
    std::thread thread([&] { other = tcp::meet(second, 20).start; });
    seen.push_back(tcp::meet(first, 20).start);
    thread.join();
    EXPECT_EQ(seen.back(), other);
  }
  EXPECT_NE(seen[0], seen[1]);
}

// ---- Memory of one machine

TEST(SharedMemoryOfRanks, ANameGoesWithItsMakerAndAfterAFailure) {
  const std::string name = fmt::format("/pleat-test-{}", ::getpid());
  using tcp::SharedMemory;
  const auto is_there = [&] {
    try {
      const SharedMemory found(name, 4096, SharedMemory::Make::No);
      return true;
    } catch (const base::Error&) {
      return false;
    }
  };
  {
    const SharedMemory made(name, 4096, SharedMemory::Make::Yes);
    EXPECT_TRUE(is_there());
    EXPECT_TRUE(is_there());  // who finds it takes nothing away
    EXPECT_THROW(SharedMemory(name, 4096, SharedMemory::Make::Yes), base::Error);
    EXPECT_TRUE(is_there());
  }
  EXPECT_FALSE(is_there());
  EXPECT_THROW(SharedMemory(name, size_t{1} << 63, SharedMemory::Make::Yes), base::Error);
  EXPECT_FALSE(is_there());
}

// ---- Whole worlds

// What rank 0 of two says when rank 1 meets it and then does as told.
std::string start_beside(const Door& first, const Door& second, const std::function<void(tcp::Met)>& then) {
  std::thread other([&] { then(tcp::meet(second, 20)); });
  std::string said;
  Options options;
  options.timeout_seconds = 0.3;
  try {
    run_tcp_rank(
        first, options, [](Endpoint&, int) {}, 0.3);
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ExitCode::Retry);
    said = e.what();
  }
  other.join();
  return said;
}

TEST(TcpWorld, ARankThatDiesInTheStartDoesNotSpoilTheNext) {
  Place place;
  const Door second = place.door(1, 2);
  for (int start = 0; start < 2; ++start) {
    const std::string said = start_beside(place.door(0, 2), second, [](tcp::Met) {});
    expect_in("rank 0 of 2, meeting the ranks of this machine: rank 1 has closed its connection", said);
    place.listening = tcp::listen_at(place.port);
  }
}

TEST(TcpWorld, ARankThatHangsInTheStartIsNamedAtTheDeadline) {
  Place place;
  const Door first = place.door(0, 2), second = place.door(1, 2);
  const std::string said = start_beside(first, second, [](const tcp::Met& met) {
    (void)tcp::wait_for(met.peers[0].descriptor(), POLLRDHUP, in(20));  // until the other side closes
  });
  EXPECT_EQ(said, "rank 0 of 2, meeting the ranks of this machine: these ranks have not come: 1");
}

// Each rank of a world as a thread: connections, groups and the end are those of processes.
std::string run_as_threads(int size, const std::function<void(Endpoint&)>& fn) {
  Place place;
  std::vector<Door> doors;
  for (int r = 0; r < size; ++r) doors.push_back(place.door(r, size));
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::string faults;
  for (const Door& door : doors)
    threads.emplace_back([&] {
      Options options;
      options.timeout_seconds = 60;
      try {
        run_tcp_rank(door, options, [&](Endpoint& e, int num_here) {
          EXPECT_EQ(num_here, size);
          fn(e);
        });
      } catch (const std::exception& e) {
        const std::lock_guard lock(mutex);
        faults += fmt::format("rank {}: {}\n", door.rank, e.what());
      }
    });
  for (std::thread& t : threads) t.join();
  return faults;
}

TEST(TcpWorld, EveryOperationOnTwoAndFiveRanks) {
  for (const int size : {2, 5}) {
    EXPECT_EQ(run_as_threads(size,
                             [](Endpoint& e) {
                               std::string digest;
                               const auto c = e.group("all", testing::all_of(e.size()));
                               EXPECT_EQ(testing::run_cases(*c, digest), "");
                             }),
              "");
  }
}

// Both send before either receives, more than connections hold and no more than is kept.
TEST(TcpWorld, LargeMessagesInBothDirectionsDoNotBlock) {
  EXPECT_EQ(run_as_threads(2,
                           [](Endpoint& e) {
                             const auto c = e.group("all", testing::all_of(2));
                             const int other = 1 - e.rank();
                             std::vector<int64_t> out(900 << 10, e.rank()), in(out.size());
                             ASSERT_LT(2 * out.size() * sizeof out[0], tcp::most_kept_of_peer(2));
                             for (int tag = 0; tag < 2; ++tag)
                               c->send("there", other, tag, std::as_bytes(std::span(out)));
                             for (int tag = 1; tag >= 0; --tag)
                               c->receive("here", other, tag, std::as_writable_bytes(std::span(in)));
                             EXPECT_EQ(in, std::vector<int64_t>(in.size(), other));
                           }),
            "");
}

// Collectives await before they send: nothing of it need be kept. On two groups at once, each on its own lane.
TEST(TcpWorld, CollectivesOfMoreThanIsKeptOnSeveralLanes) {
  EXPECT_EQ(
      run_as_threads(3,
                     [](Endpoint& e) {
                       const auto a = e.group("a", testing::all_of(3)), b = e.group("b", testing::all_of(3));
                       const auto work = [&](Communicator& c, int times) {
                         std::vector<int32_t> out(5 << 20, e.rank()), all(3 * out.size()), in(out.size());
                         for (int i = 0; i < times; ++i) {
                           c.all_gather("gather", std::as_bytes(std::span(out)),
                                        std::as_writable_bytes(std::span(all)));
                           c.send_receive("ring", (e.rank() + 1) % 3, std::as_bytes(std::span(out)),
                                          (e.rank() + 2) % 3, std::as_writable_bytes(std::span(in)), 4);
                           EXPECT_EQ(all.back(), 2);
                           EXPECT_EQ(in.back(), (e.rank() + 2) % 3);
                         }
                       };
                       std::thread lane([&] { work(*a, 1); });
                       work(*b, 2);
                       lane.join();
                     }),
      "");
}

TEST(TcpWorld, ExchangesOfDeviceMemoryAreEnqueued) {
  EXPECT_EQ(run_as_threads(2,
                           [](Endpoint& e) {
                             EXPECT_EQ(e.meeting(Buffers::Device), program::Meeting::OnDevice);
                             EXPECT_EQ(e.meeting(Buffers::Host), program::Meeting::OnHost);
                           }),
            "");
}

TEST(TcpWorld, TwoRanksOnOneGpuAreRefused) {
  const std::string faults = run_as_threads(3, [](Endpoint& e) {
    require_own_gpu(e, fmt::format("0000:1{}:00.0", e.rank()));
    require_own_gpu(e, e.rank() == 1 ? "0000:1b:00.0" : "0000:2c:00.0");
  });
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_NE(faults.find(fmt::format("rank {}: ranks 0 and 2 have the same GPU", rank)), std::string::npos)
        << faults;
  EXPECT_NE(faults.find("NCCL_MULTI_RANK_GPU_ENABLE=1"), std::string::npos) << faults;
}

// ---- Where they meet

Environment environment(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const char* name) {
    const auto found = values.find(name);
    return found == values.end() ? nullptr : found->second.c_str();
  };
}

TEST(DoorOfARun, TorchrunsVariables) {
  World world{1, 4, 1, 4, "torchrun-style variables"};
  const Door door = read_door(
      world, environment({{"MASTER_ADDR", "node7"}, {"MASTER_PORT", "29500"}, {"TORCHELASTIC_RUN_ID", "x"}}));
  EXPECT_EQ(door.address, "node7");
  EXPECT_EQ(door.port, 29500);
  EXPECT_EQ(door.token, "run x");
  EXPECT_EQ(door.listening, -1);
}

// Every wrong form: the variable, what was got, and what is needed.
TEST(DoorOfARun, AWrongPlaceIsNamedWithWhatIsNeeded) {
  using Values = std::map<std::string, std::string>;
  const auto refused = [](const std::string& launcher, const Values& values, const std::string& got,
                          const std::string& needed) {
    try {
      read_door(World{1, 4, 1, 4, launcher}, environment(values));
      ADD_FAILURE() << "taken, but: " << got;
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ExitCode::BadInput);
      expect_in(got, e.what());
      expect_in(needed, e.what());
    }
  };
  const std::string torchrun = "torchrun-style variables";
  const Values slurm = {{"SLURM_STEP_NODELIST", "n1"}, {"SLURM_JOB_ID", "1"}, {"SLURM_STEP_ID", "0"}};
  for (const char* wrong : {"", "http", "-1", "0", "65536", "29500x", "99999999999"}) {
    const std::string got = fmt::format("MASTER_PORT='{}'", wrong);
    refused(torchrun, {{"MASTER_ADDR", "node7"}, {"MASTER_PORT", wrong}}, got, "from 1 to 65535");
    Values both = slurm;
    both["MASTER_PORT"] = wrong;
    refused("Slurm", both, got, "from 1 to 65535");
  }
  refused(torchrun, {}, "MASTER_ADDR is not set, MASTER_PORT is not set", "needed MASTER_ADDR");
  refused(torchrun, {{"MASTER_ADDR", "node7"}}, "MASTER_ADDR is 'node7', MASTER_PORT is not set",
          "MASTER_PORT, a free port there from 1 to 65535");
  refused(torchrun, {{"MASTER_PORT", "29500"}}, "MASTER_ADDR is not set, MASTER_PORT is '29500'",
          "the machine of rank 0");
  Values empty = slurm;
  empty["MASTER_ADDR"] = "";
  refused("Slurm", empty, "MASTER_ADDR is empty", "the machine of rank 0");
}

TEST(DoorOfARun, ADescriptorThatDoesNotListenIsRefusedByName) {
  const World world{0, 2, 0, 2, "torchrun-style variables"};
  const auto of = [&](int descriptor) {
    return read_door(world, environment({{"MASTER_ADDR", "node7"},
                                         {"MASTER_PORT", "29500"},
                                         {"PLEAT_LISTENING", std::to_string(descriptor)}}));
  };
  const Socket listening = tcp::listen_at(0);
  EXPECT_EQ(of(listening.descriptor()).listening, listening.descriptor());
  const Socket connected = tcp::connect_to("127.0.0.1", tcp::port_of(listening), in(5));
  for (const int descriptor : {connected.descriptor(), 1 << 20}) {
    try {
      of(descriptor);
      ADD_FAILURE() << descriptor << " was taken";
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ExitCode::BadInput);
      expect_in(fmt::format("PLEAT_LISTENING={} in the environment: no socket that listens", descriptor),
                e.what());
    }
  }
}

TEST(DoorOfARun, SlurmNeedsNothing) {
  World world{3, 4, 1, 2, "Slurm"};
  const auto of = [&](const std::string& step) {
    return read_door(world, environment({{"SLURM_STEP_NODELIST", "gpu[03-04]"},
                                         {"SLURM_JOB_ID", "812"},
                                         {"SLURM_STEP_ID", step}}));
  };
  EXPECT_EQ(of("0").address, "gpu03");
  EXPECT_GE(of("0").port, 15000);
  EXPECT_LT(of("0").port, 31000);
  EXPECT_NE(of("0").port, of("1").port);
  EXPECT_NE(of("0").token, of("1").token);
}

TEST(DoorOfARun, TheFirstMachineOfAList) {
  EXPECT_EQ(first_host("login"), "login");
  EXPECT_EQ(first_host("a,b"), "a");
  EXPECT_EQ(first_host("gpu[01-04,7],login"), "gpu01");
  EXPECT_EQ(first_host("rack[2,5]-ib,x"), "rack2-ib");
  EXPECT_EQ(first_host("x,gpu[01-04]"), "x");
  EXPECT_THROW(first_host("gpu["), base::Error);
}

}  // namespace
}  // namespace pleat::comm
