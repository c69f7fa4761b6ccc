// Thread ranks: every collective against brute force, bits that do not depend on timing, ranks that fail.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

#include "base/error.h"
#include "comm/comm_support.h"
#include "comm/local/local_world.h"
#include "comm/windows/windows.h"
#include "tensor/bf16.h"

namespace pleat {
namespace {

using comm::LocalWorld;
using comm::Reduce;
using testing::all_of;
using testing::bytes_of;

comm::Options quick() {
  comm::Options options;
  options.timeout_seconds = 60;
  return options;
}

std::string error_of(const std::function<void()>& fn, base::ExitCode code) {
  try {
    fn();
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

void expect_words(const std::string& text, std::initializer_list<std::string> words) {
  for (const std::string& word : words)
    EXPECT_NE(text.find(word), std::string::npos) << "'" << word << "' in: " << text;
}

class LocalSizes : public ::testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(LocalSizes, EveryCollectiveEqualsBruteForce) {
  const auto [size, check] = GetParam();
  comm::Options options = quick();
  options.check = check;
  LocalWorld world(size, options);
  std::vector<std::string> digests(static_cast<size_t>(size));
  comm::run_ranks(world, [&, size = size](int rank) {
    const auto c = world.group("all", all_of(size), rank);
    EXPECT_EQ(c->rank(), rank);
    EXPECT_EQ(c->size(), size);
    EXPECT_EQ(testing::run_cases(*c, digests[static_cast<size_t>(rank)]), "");
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, LocalSizes,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 7), ::testing::Bool()));

TEST(Local, GroupOrderIsTheOrderOfSums) {
  // 1 and 2^53 and -2^53: what is left of the 1 depends on the order.
  LocalWorld world(3, quick());
  const double values[3] = {1.0, 9007199254740992.0, -9007199254740992.0};
  comm::run_ranks(world, [&](int rank) {
    const auto up = world.group("up", all_of(3), rank);
    const std::vector<int> reversed = {2, 1, 0};
    const auto down = world.group("down", reversed, rank);
    EXPECT_EQ(down->rank(), 2 - rank);
    double a = values[rank], b = values[rank];
    up->all_reduce("up", std::span(&a, 1), Reduce::Sum);
    down->all_reduce("down", std::span(&b, 1), Reduce::Sum);
    EXPECT_EQ(a, (values[0] + values[1]) + values[2]);
    EXPECT_EQ(b, (values[2] + values[1]) + values[0]);
    EXPECT_NE(a, b);
  });
}

TEST(Local, FloatSumsAreRoundedOnce) {
  LocalWorld world(4, quick());
  const float values[4] = {16777216.0F, 1.0F, 1.0F, 1.0F};  // in f32 every 1 would be lost
  comm::run_ranks(world, [&](int rank) {
    const auto c = world.group("all", all_of(4), rank);
    float v = values[rank];
    c->all_reduce("sum", std::span(&v, 1), Reduce::Sum);
    EXPECT_EQ(v, 16777220.0F);
  });
}

TEST(Local, NarrowSumsAreCarriedInFloatAndRoundedOnce) {
  LocalWorld world(4, quick());
  // 256 + 1 lies half way between two bf16, and again: rounded after each sum, every 1 would be lost.
  const float values[4] = {256.0F, 1.0F, 1.0F, 1.0F};
  comm::run_ranks(world, [&](int rank) {
    const auto c = world.group("all", all_of(4), rank);
    const auto reduce = [&](float mine, Reduce how) {
      std::vector<uint16_t> v(3, tensor::narrowed(mine));
      c->all_reduce("bf16", bytes_of(v), bytes_of(v), tensor::Dtype::BF16, how);
      EXPECT_EQ(v, std::vector<uint16_t>(3, v[0]));
      return tensor::widened(v[0]);
    };
    EXPECT_EQ(reduce(values[rank], Reduce::Sum), 260.0F);
    EXPECT_EQ(reduce(values[rank], Reduce::Max), 256.0F);
    EXPECT_EQ(reduce(rank == 2 ? -0.5F : 1.0F, Reduce::Min), -0.5F);
    EXPECT_TRUE(std::isnan(reduce(rank == 1 ? NAN : 1.0F, Reduce::Max)));
  });
}

TEST(Local, NanOfOneRankReachesAll) {
  for (int bad = 0; bad < 3; ++bad) {
    LocalWorld world(3, quick());
    comm::run_ranks(world, [&](int rank) {
      const auto c = world.group("all", all_of(3), rank);
      for (const Reduce op : {Reduce::Sum, Reduce::Max, Reduce::Min}) {
        double v = rank == bad ? std::nan("") : rank;
        c->all_reduce("nan", std::span(&v, 1), op);
        EXPECT_TRUE(std::isnan(v)) << comm::name_of(op);
      }
    });
  }
}

TEST(Local, BitsDoNotDependOnTiming) {
  const int size = 4;
  const int64_t count = 513;
  std::vector<float> first;
  for (int repeat = 0; repeat < 50; ++repeat) {
    LocalWorld world(size, quick());
    std::vector<std::vector<float>> results(size);
    comm::run_ranks(world, [&](int rank) {
      std::mt19937 random(static_cast<unsigned>(repeat * size + rank));
      const auto c = world.group("all", all_of(size), rank);
      std::vector<float> v;
      for (int64_t i = 0; i < count; ++i)
        v.push_back(static_cast<float>(std::sin(double(i * 7 + rank * 13)) * 1e3));
      for (int call = 0; call < 3; ++call) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
        c->all_reduce("sum", std::span(v), Reduce::Sum);
        for (float& x : v) x = x * 0.3F + static_cast<float>(rank);
      }
      c->all_reduce("last", std::span(v), Reduce::Sum);
      results[static_cast<size_t>(rank)] = v;
    });
    if (first.empty()) first = results[0];
    for (const auto& result : results)
      ASSERT_EQ(std::memcmp(result.data(), first.data(), first.size() * sizeof(float)), 0)
          << "repeat " << repeat;
  }
}

TEST(Local, TwoGroupsFromTwoThreadsOfEachRank) {
  const int size = 4;
  LocalWorld world(size, quick());
  comm::run_ranks(world, [&](int rank) {
    const auto all = world.group("all", all_of(size), rank);
    const std::vector<int> pair = {rank / 2 * 2, rank / 2 * 2 + 1};
    const auto half = world.group("pair", pair, rank);  // one name, two groups that do not overlap
    std::thread lane([&] {
      for (int i = 0; i < 200; ++i) {
        int64_t v = rank + i;
        all->all_reduce("a", std::span(&v, 1), Reduce::Sum);
        ASSERT_EQ(v, 6 + 4 * i);
      }
    });
    for (int i = 0; i < 200; ++i) {
      int32_t v = rank + i;
      half->all_reduce("b", std::span(&v, 1), Reduce::Max);
      ASSERT_EQ(v, pair[1] + i);
      std::vector<int32_t> out = {v + rank}, in = {-1};
      half->send_receive("swap", 1 - half->rank(), bytes_of(out), 1 - half->rank(), bytes_of(in), 0);
      ASSERT_EQ(in[0], v + (rank ^ 1));
    }
    lane.join();
  });
}

TEST(Local, MessagesMatchByTagAndRunBesideCollectives) {
  LocalWorld world(2, quick());
  comm::run_ranks(world, [&](int rank) {
    const auto c = world.group("all", all_of(2), rank);
    std::thread lane([&] {
      for (int i = 0; i < 100; ++i) c->barrier("beside");
    });
    std::vector<int32_t> a = {10}, b = {20};
    if (rank == 0) {
      std::thread other([&] { c->send("b", 1, 2, bytes_of(b)); });
      c->send("a", 1, 1, bytes_of(a));
      other.join();
    } else {
      std::vector<int32_t> got = {0};
      c->receive("b", 0, 2, bytes_of(got));
      EXPECT_EQ(got[0], 20);
      c->receive("a", 0, 1, bytes_of(got));
      EXPECT_EQ(got[0], 10);
    }
    lane.join();
  });
}

TEST(Local, ExceptionOfOneRankWakesTheOthersAndIsNamed) {
  for (const bool in_message : {false, true}) {
    LocalWorld world(4, quick());
    std::vector<std::string> others(4);
    const std::string what = error_of(
        [&] {
          comm::run_ranks(world, [&](int rank) {
            const auto c = world.group("dp", all_of(4), rank);
            if (rank == 2) {
              std::this_thread::sleep_for(std::chrono::milliseconds(20));
              base::fail_with(base::ExitCode::Numerical, "loss is not finite");
            }
            try {
              std::vector<float> v(8);
              if (in_message)
                c->receive("pull", 2, 0, bytes_of(v));
              else
                c->all_reduce("norm", std::span(v), Reduce::Sum);
            } catch (const base::Error& e) {
              others[static_cast<size_t>(rank)] = e.what();
              EXPECT_EQ(e.code(), base::ExitCode::Retry);
              throw;
            }
          });
        },
        base::ExitCode::Numerical);
    EXPECT_EQ(what, "rank 2: loss is not finite");
    for (const int rank : {0, 1, 3})
      expect_words(others[static_cast<size_t>(rank)],
                   {"rank 2 failed (loss is not finite)", "rank " + std::to_string(rank), "group 'dp'",
                    in_message ? "receive #0 of stage 'pull'" : "all_reduce #0 of stage 'norm'"});
  }
}

TEST(Local, AWindowStaysUnderTheOthersWhenItsRankFails) {
  LocalWorld world(2, quick());
  std::weak_ptr<std::byte> window[2];
  std::atomic<bool> gone = false;
  const std::string what = error_of(
      [&] {
        comm::run_ranks(world, [&](int rank) {
          const auto endpoint = world.endpoint(rank);
          std::unique_ptr<comm::SharedWindows> shared;
          {
            const auto words = std::make_shared<std::vector<std::byte>>(64, std::byte{0});
            const std::shared_ptr<std::byte> memory(words, words->data());
            window[rank] = memory;
            shared = endpoint->share_windows(all_of(2), comm::Buffers::Host, memory);
          }
          ASSERT_EQ(shared->begin.size(), 2u);
          EXPECT_EQ(shared->own, rank);
          if (rank == 1) {
            shared.reset();
            gone = true, gone.notify_all();
            base::fail_with(base::ExitCode::Numerical, "loss is not finite");
          }
          gone.wait(false);
          EXPECT_EQ(window[1].lock().get(), shared->begin[1]);
          shared->begin[1][63] = std::byte{1};
          shared.reset();
          EXPECT_TRUE(window[0].expired() && window[1].expired()) << "nobody stores any more";
        });
      },
      base::ExitCode::Numerical);
  EXPECT_EQ(what, "rank 1: loss is not finite");
}

// The call that passes windows round gets through on all ranks or on none.
TEST(Local, WindowsThatWereNotSharedAreGone) {
  LocalWorld world(2, quick());
  std::weak_ptr<std::byte> window;
  const std::string what = error_of(
      [&] {
        comm::run_ranks(world, [&](int rank) {
          if (rank == 1) base::fail("no window here");
          const auto memory = std::make_shared<std::byte>();
          window = memory;
          world.endpoint(rank)->share_windows(all_of(2), comm::Buffers::Host, memory);
        });
      },
      base::ExitCode::BadInput);
  EXPECT_EQ(what, "rank 1: no window here");
  EXPECT_TRUE(window.expired());
}

TEST(Local, ForeignExceptionIsInternal) {
  LocalWorld world(2, quick());
  const std::string what = error_of(
      [&] {
        comm::run_ranks(world, [](int rank) {
          if (rank == 1) throw std::runtime_error("odd");
        });
      },
      base::ExitCode::Internal);
  EXPECT_EQ(what, "rank 1: odd");
}

// What both ranks must say when they call different things.
void expect_mismatch(bool check, const std::function<void(comm::Communicator&, int)>& fn,
                     std::initializer_list<std::string> words) {
  comm::Options options = quick();
  options.check = check;
  LocalWorld world(3, options);
  std::vector<std::string> said(3);
  error_of(
      [&] {
        comm::run_ranks(world, [&](int rank) {
          const auto c = world.group("ep", all_of(3), rank);
          c->barrier("begin");
          try {
            fn(*c, rank);
          } catch (const base::Error& e) {
            said[static_cast<size_t>(rank)] = e.what();
            throw;
          }
        });
      },
      base::ExitCode::BadInput);
  EXPECT_EQ(said[0], said[1]);
  EXPECT_EQ(said[0], said[2]);
  expect_words(said[0], words);
}

TEST(LocalCheck, OtherSize) {
  expect_mismatch(false,
                  [](comm::Communicator& c, int rank) {
                    std::vector<float> v(rank == 2 ? 5 : 4);
                    c.all_reduce("norm", std::span(v), Reduce::Sum);
                  },
                  {"group 'ep' (ranks 0 1 2), call 1", "ranks 0 and 2 do not agree on the shape",
                   "rank 0 calls all_reduce sum f32 16 bytes", "rank 2 calls all_reduce sum f32 20 bytes"});
}

TEST(LocalCheck, OtherOperation) {
  expect_mismatch(
      false,
      [](comm::Communicator& c, int rank) {
        std::vector<float> v(6), w(2);
        if (rank == 1)
          c.reduce_scatter("scatter", bytes_of(v), bytes_of(w), tensor::Dtype::F32, Reduce::Sum);
        else
          c.all_reduce("norm", std::span(v), Reduce::Sum);
      },
      {"ranks 0 and 1 do not agree on the operation", "all_reduce sum f32 24 bytes for stage 'norm'",
       "reduce_scatter sum f32 24 bytes in parts [8 8 8] for stage 'scatter'"});
}

TEST(LocalCheck, OtherReductionTypeRootOrParts) {
  expect_mismatch(false,
                  [](comm::Communicator& c, int rank) {
                    std::vector<float> v(4);
                    c.all_reduce("norm", std::span(v), rank == 1 ? Reduce::Max : Reduce::Sum);
                  },
                  {"all_reduce sum f32", "all_reduce max f32"});
  expect_mismatch(false,
                  [](comm::Communicator& c, int rank) {
                    std::vector<int32_t> v(4);
                    c.all_reduce("norm", bytes_of(v), bytes_of(v),
                                 rank == 1 ? tensor::Dtype::F32 : tensor::Dtype::I32, Reduce::Sum);
                  },
                  {"sum i32", "sum f32"});
  expect_mismatch(false,
                  [](comm::Communicator& c, int rank) {
                    std::vector<int32_t> v(4);
                    c.broadcast("weights", bytes_of(v), rank == 0 ? 0 : 1);
                  },
                  {"from member 0", "from member 1"});
  expect_mismatch(false,
                  [](comm::Communicator& c, int rank) {
                    std::vector<uint8_t> out(9), in(3);
                    const std::vector<int64_t> a = {3, 3, 3}, b = {4, 3, 2};
                    c.all_gather_v("gather", bytes_of(in), bytes_of(out), rank == 1 ? b : a);
                  },
                  {"ranks 0 and 1 do not agree on the shape", "in parts [3 3 3]", "in parts [4 3 2]"});
}

TEST(LocalCheck, OtherCountsInAllToAll) {
  expect_mismatch(false,
                  [](comm::Communicator& c, int rank) {
                    std::vector<uint8_t> in(30), out(30);
                    std::vector<int64_t> send = {5, 5, 5}, receive = {5, 5, 5};
                    const std::vector<int64_t> at = {0, 10, 20};
                    if (rank == 2) send[1] = 6;
                    c.all_to_all_v("dispatch", bytes_of(in), {send, at}, bytes_of(out), {receive, at});
                  },
                  {"'dispatch'", "rank 2 sends 6 bytes to rank 1, which awaits 5 bytes"});
}

TEST(LocalCheck, OtherOrderIsFoundByStageInCheckMode) {
  const auto swapped = [](comm::Communicator& c, int rank) {
    std::vector<float> v(4);
    c.all_reduce(rank == 1 ? "second" : "first", std::span(v), Reduce::Sum);
    c.all_reduce(rank == 1 ? "first" : "second", std::span(v), Reduce::Sum);
  };
  expect_mismatch(true, swapped,
                  {"call 1", "ranks 0 and 1 do not agree on the stage", "'first'", "'second'"});
  LocalWorld world(3, quick());  // without check mode nobody sees it: same operation, same size
  comm::run_ranks(world, [&](int rank) { swapped(*world.group("ep", all_of(3), rank), rank); });
}

TEST(LocalCheck, MessageSizes) {
  LocalWorld world(2, quick());
  std::vector<std::string> said(2);
  error_of(
      [&] {
        comm::run_ranks(world, [&](int rank) {
          const auto c = world.group("pp", all_of(2), rank);
          std::vector<uint8_t> v(rank == 0 ? 8 : 9);
          try {
            if (rank == 0) c->send("push", 1, 3, bytes_of(v));
            if (rank == 1) c->receive("pull", 0, 3, bytes_of(v));
          } catch (const base::Error& e) {
            said[static_cast<size_t>(rank)] = e.what();
            throw;
          }
        });
      },
      base::ExitCode::BadInput);
  for (const std::string& text : said)
    expect_words(text,
                 {"group 'pp'", "8 bytes sent for stage 'push', 9 bytes awaited for stage 'pull' (tag 3)"});
}

TEST(LocalArguments, AreRefusedBeforeAnythingMoves) {
  LocalWorld world(1, quick());
  const auto c = world.group("all", all_of(1), 0);
  std::vector<float> four(4), two(2);
  const auto refused = [&](const std::function<void()>& fn, std::initializer_list<std::string> words) {
    expect_words(error_of(fn, base::ExitCode::BadInput), words);
  };
  refused([&] { c->all_reduce("s", bytes_of(four), bytes_of(two), tensor::Dtype::F32, Reduce::Sum); },
          {"16 bytes in, 8 bytes out", "'s'"});
  refused([&] { c->all_reduce("s", bytes_of(four), bytes_of(four), tensor::Dtype::U8, Reduce::Sum); },
          {"u8"});
  refused(
      [&] {
        c->all_reduce("s", bytes_of(four).first(8), bytes_of(four).subspan(4, 8), tensor::Dtype::F32,
                      Reduce::Sum);
      },
      {"overlap"});
  refused(
      [&] {
        c->all_reduce("s", bytes_of(four).first(6), bytes_of(two).first(6), tensor::Dtype::F32, Reduce::Sum);
      },
      {"6 bytes", "no array of f32"});
  const std::vector<int64_t> wrong = {3}, negative = {-1}, many = {1, 1};
  refused(
      [&] {
        c->reduce_scatter_v("s", bytes_of(four), bytes_of(two), wrong, tensor::Dtype::F32, Reduce::Sum);
      },
      {"add up to 12 bytes", "16"});
  refused([&] { c->all_gather_v("s", bytes_of(two), bytes_of(four), negative); }, {"-1"});
  refused([&] { c->all_gather_v("s", bytes_of(two), bytes_of(four), many); }, {"2 counts for 1 ranks"});
  const std::vector<int64_t> nine = {9}, zero = {0};
  refused(
      [&] {
        c->all_to_all_v("s", bytes_of(two), {nine, zero}, bytes_of(four), {zero, zero});
      },
      {"send part 0 is 9 bytes at 0"});
  refused([&] { c->broadcast("s", bytes_of(two), 1); }, {"root 1 is no rank of this group of 1"});
  refused([&] { c->send("s", 0, 0, bytes_of(two)); }, {"to itself"});
  refused([&] { world.group("all", all_of(1), 0); }, {"open already"});
  LocalWorld three(3, quick());
  const std::vector<int> a = {0, 1}, b = {1, 2}, twice = {1, 1}, outside = {0, 3};
  const auto open = three.group("tp", a, 0);
  refused([&] { three.group("tp", b, 1); }, {"rank 1 says ranks 1 2, another rank said 0 1"});
  refused([&] { three.group("tp", a, 2); }, {"does not contain rank 2"});
  refused([&] { three.group("x", twice, 1); }, {"rank 1 is there twice"});
  refused([&] { three.group("x", outside, 0); }, {"rank 3"});
  refused([] { LocalWorld none(0); }, {"0 ranks"});
}

}  // namespace
}  // namespace pleat
