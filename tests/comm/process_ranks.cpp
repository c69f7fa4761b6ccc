// One process of a world that process_test.cpp starts: `comm_ranks CASE` under mpirun, or `comm_ranks launch N CASE`,
// which starts N of them that meet over TCP. Prints what rank 0 has to say.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "comm/comm_support.h"
#include "comm/process/launcher.h"
#include "comm/process/run_rank.h"

namespace pleat {
namespace {

using comm::Communicator;
using comm::Endpoint;
using comm::Reduce;
using testing::bytes_of;

std::vector<int> all_of(const Endpoint& e) {
  std::vector<int> ranks(static_cast<size_t>(e.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

void cases(Endpoint& e) {
  const auto c = e.group("all", all_of(e));
  std::string digest;
  const std::string fault = testing::run_cases(*c, digest);
  if (!fault.empty()) base::fail("{}", fault);
  std::vector<char> all(digest.size() * static_cast<size_t>(e.size()));
  c->all_gather("digests", std::as_bytes(std::span(digest)), bytes_of(all));
  if (e.rank() == 0) fmt::print("{}\n", std::string(all.begin(), all.end()));
}

// MPI's own sums: near ours, not compared bit by bit.
void native(Endpoint& e) {
  const auto c = e.group("all", all_of(e));
  const auto n = static_cast<size_t>(e.size());
  std::vector<double> v(7 * n), part(7);
  for (size_t i = 0; i < v.size(); ++i) v[i] = std::sin(double(i) + e.rank());
  c->reduce_scatter("part", bytes_of(v), bytes_of(part), tensor::Dtype::F64, Reduce::Sum);
  c->all_reduce("whole", std::span(v), Reduce::Sum);
  for (size_t i = 0; i < v.size(); ++i) {
    double want = 0;
    for (int r = 0; r < e.size(); ++r) want += std::sin(double(i) + r);
    if (std::abs(v[i] - want) > 1e-12) base::fail("all_reduce gave {}, needed {}", v[i], want);
    const size_t mine = static_cast<size_t>(e.rank()) * 7;
    if (i >= mine && i < mine + 7 && std::abs(part[i - mine] - want) > 1e-12)
      base::fail("reduce_scatter gave {}, needed {}", part[i - mine], want);
  }
  if (e.rank() == 0) fmt::print("near\n");
}

// Two groups of each rank used from two threads at once.
void threads(Endpoint& e) {
  const auto a = e.group("a", all_of(e)), b = e.group("b", all_of(e));
  const int n = e.size(), sum = n * (n - 1) / 2;
  const auto go = [&](Communicator& c, int first) {
    for (int i = 0; i < 100; ++i) {
      int64_t v = e.rank() + first + i;
      c.all_reduce("sum", std::span(&v, 1), Reduce::Sum);
      if (v != sum + n * (first + i)) base::fail("sum {} in {}", v, c.name());
    }
  };
  std::string fault;
  std::thread lane([&] {
    try {
      go(*a, 1000);
    } catch (const std::exception& error) {
      fault = error.what();
    }
  });
  go(*b, 5);
  lane.join();
  if (!fault.empty()) base::fail("{}", fault);
  if (e.rank() == 0) fmt::print("both\n");
}

void mismatch(Endpoint& e) {
  const auto c = e.group("dp", all_of(e));
  std::vector<float> v(e.rank() == 1 ? 5 : 4);
  c->all_reduce("norm", std::span(v), Reduce::Sum);
}

void order(Endpoint& e) {
  const auto c = e.group("dp", all_of(e));
  std::vector<float> v(4);
  c->all_reduce(e.rank() == 1 ? "second" : "first", std::span(v), Reduce::Sum);
}

// The last rank does something else than the collective all others are in.
template <class Instead>
void without_last(Endpoint& e, Instead instead) {
  const auto c = e.group("dp", all_of(e));
  std::vector<float> v(4);
  c->all_reduce("first", std::span(v), Reduce::Sum);
  if (e.rank() + 1 == e.size()) instead();
  c->all_reduce("second", std::span(v), Reduce::Sum);
}

// The last rank opens the group and makes no call.
void never(Endpoint& e) {
  const auto c = e.group("dp", all_of(e));
  if (e.rank() + 1 == e.size()) std::this_thread::sleep_for(std::chrono::seconds(60));
  c->barrier("first");
}

// The last rank does not even open it.
void unopened(Endpoint& e) {
  if (e.rank() + 1 == e.size()) std::this_thread::sleep_for(std::chrono::seconds(60));
  e.group("dp", all_of(e));
}

void run_case(const std::string& name, Endpoint& e) {
  if (name == "cases" || name == "checked") return cases(e);
  if (name == "native") return native(e);
  if (name == "threads") return threads(e);
  if (name == "mismatch" || name == "unchecked_mismatch") return mismatch(e);
  if (name == "order") return order(e);
  if (name == "never") return never(e);
  if (name == "unopened") return unopened(e);
  if (name == "skip") return without_last(e, [] { std::this_thread::sleep_for(std::chrono::seconds(60)); });
  if (name == "stop") return without_last(e, [] { raise(SIGSTOP); });
  if (name == "kill") return without_last(e, [] { raise(SIGKILL); });
  if (name == "throw")
    return without_last(e, [] { base::fail_with(base::ExitCode::Numerical, "loss is not finite"); });
  base::fail("there is no case '{}'", name);
}

}  // namespace
}  // namespace pleat

int main(int argc, char** argv) {
  using namespace pleat;
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "launch" && argc > 3) {
    comm::LaunchOptions how;
    how.num_ranks = std::atoi(argv[2]);
    how.grace_seconds = 4;
    return comm::launch_ranks({argv[0], argv[3]}, how);
  }
  comm::Options options;
  options.timeout_seconds =
      name == "skip" || name == "stop" || name == "never" || name == "unopened" ? 1 : 60;
  options.check = name == "checked" || name == "mismatch" || name == "order";
  options.mpi_native = name == "native";
  try {
    comm::run_process_rank(comm::read_world(), options, [&](Endpoint& e, int) { run_case(name, e); });
  } catch (const base::Error& e) {
    fmt::print(stderr, "error: {}\n", e.what());
    return static_cast<int>(e.code());
  }
  return 0;
}
