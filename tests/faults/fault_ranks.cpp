// A small world in which one rank goes wrong: `fault_ranks CARRIER OPERATION FAULT TIMEOUT [check|plain
// [MARK]]`.
//
// CARRIER is the number of thread ranks, "mpi" under mpirun, or "tcp" for one rank of several as torchrun's variables
// say. All ranks make three calls in group 'dp': an all_reduce of stage 'first', the named operation as stage 'second',
// a barrier of stage 'third'. FAULT is as in comm/inject.h, "order" for a rank 1 that makes the last two the other way
// round, or "none". MARK is for others to find the process by. Prints "all calls made" when nothing went wrong.
#include <fmt/format.h>
#include <signal.h>

#include <functional>
#include <map>
#include <numeric>

#include "base/error.h"
#include "comm/comm_support.h"
#include "comm/door.h"
#include "comm/inject.h"
#include "comm/local/local_world.h"
#include "comm/mpi/mpi_world.h"
#include "comm/tcp/mesh.h"
#include "comm/tcp/tcp_world.h"
#include "comm/world.h"

namespace pleat {
namespace {

using comm::Communicator;
using comm::Reduce;
using testing::bytes_of;

constexpr auto kType = tensor::Dtype::F32;
constexpr int64_t kCount = 1 << 16;  // elements per rank

// `message`: so large that no carrier hands it over before the receiver has come.
struct Buffers {
  explicit Buffers(const Communicator& c, bool tcp)
      : part(kCount),
        whole(kCount * static_cast<size_t>(c.size())),
        other(whole.size()),
        message(tcp ? comm::tcp::most_kept_of_peer(c.size()) / sizeof(float) : kCount) {}
  std::vector<float> part, whole, other, message;
};

// Rank r has r more than the first, and the first that many less.
std::vector<int64_t> uneven(const Communicator& c, int64_t unit) {
  std::vector<int64_t> counts;
  for (int64_t r = 0; r < c.size(); ++r) counts.push_back((kCount - (r == 0 ? c.size() : -r)) * unit);
  return counts;
}

std::vector<float> of(int64_t count) { return std::vector<float>(static_cast<size_t>(count)); }

const std::map<std::string, std::function<void(Communicator&, Buffers&)>> kOperations = {
    {"all_reduce",
     [](Communicator& c, Buffers& b) { c.all_reduce("second", std::span(b.part), Reduce::Sum); }},
    {"reduce_scatter",
     [](Communicator& c, Buffers& b) {
       c.reduce_scatter("second", bytes_of(b.whole), bytes_of(b.part), kType, Reduce::Sum);
     }},
    {"reduce_scatter_v",
     [](Communicator& c, Buffers&) {
       const std::vector<int64_t> counts = uneven(c, 1);
       std::vector<float> in = of(std::accumulate(counts.begin(), counts.end(), int64_t{0})),
                          out = of(counts[static_cast<size_t>(c.rank())]);
       c.reduce_scatter_v("second", bytes_of(in), bytes_of(out), counts, kType, Reduce::Sum);
     }},
    {"all_gather",
     [](Communicator& c, Buffers& b) { c.all_gather("second", bytes_of(b.part), bytes_of(b.whole)); }},
    {"all_gather_v",
     [](Communicator& c, Buffers&) {
       const std::vector<int64_t> counts = uneven(c, sizeof(float));
       std::vector<float> in = of(counts[static_cast<size_t>(c.rank())] / 4),
                          out = of(std::accumulate(counts.begin(), counts.end(), int64_t{0}) / 4);
       c.all_gather_v("second", bytes_of(in), bytes_of(out), counts);
     }},
    {"all_to_all_v",
     [](Communicator& c, Buffers& b) {
       std::vector<int64_t> counts(static_cast<size_t>(c.size()), kCount * 4), offsets;
       for (int64_t r = 0; r < c.size(); ++r) offsets.push_back(r * kCount * 4);
       c.all_to_all_v("second", bytes_of(b.whole), {counts, offsets}, bytes_of(b.other), {counts, offsets});
     }},
    {"broadcast", [](Communicator& c, Buffers& b) { c.broadcast("second", bytes_of(b.message), 0); }},
    {"barrier", [](Communicator& c, Buffers&) { c.barrier("second"); }},
    {"send",  // the rank that goes wrong, 1, is the sender
     [](Communicator& c, Buffers& b) {
       if (c.rank() == 1) c.send("second", 0, 7, bytes_of(b.message));
       if (c.rank() == 0) c.receive("second", 1, 7, bytes_of(b.message));
     }},
    {"receive",
     [](Communicator& c, Buffers& b) {
       if (c.rank() == 0) c.send("second", 1, 7, bytes_of(b.message));
       if (c.rank() == 1) c.receive("second", 0, 7, bytes_of(b.message));
     }},
    {"send_receive",
     [](Communicator& c, Buffers& b) {
       const int n = c.size();
       c.send_receive("second", (c.rank() + 1) % n, bytes_of(b.part), (c.rank() + n - 1) % n,
                      bytes_of(b.other).first(kCount * 4), 7);
     }},
};

void run(comm::Endpoint& endpoint, const std::string& operation, const std::string& fault, bool tcp = false) {
  std::vector<int> all(static_cast<size_t>(endpoint.size()));
  std::iota(all.begin(), all.end(), 0);
  const auto c = endpoint.group("dp", all);
  Buffers buffers(*c, tcp);
  std::vector<float> v(4);
  c->all_reduce("first", std::span(v), Reduce::Sum);
  if (fault == "order" && c->rank() == 1) {
    fmt::print(stderr, "fault order on rank 1 at {}\n", comm::steady_ns());
    c->barrier("third");
    kOperations.at(operation)(*c, buffers);
    return;
  }
  kOperations.at(operation)(*c, buffers);
  c->barrier("third");
}

int run_all(int argc, char** argv) {
  if (argc < 5) base::fail("needed: CARRIER OPERATION FAULT TIMEOUT [check]");
  const std::string carrier = argv[1], operation = argv[2], fault = argv[3];
  comm::Options options;
  if (fault != "order" && fault != "none") options.inject = comm::inject(comm::parse_fault(fault));
  options.timeout_seconds = std::stod(argv[4]);
  options.check = argc > 5 && std::string(argv[5]) == "check";
  if (carrier == "mpi") {
    // As in a training run, where SIGTERM asks for a stop: the launcher's does not silence the table.
    signal(SIGTERM, SIG_IGN);
    comm::run_mpi_rank(options, [&](comm::Endpoint& e) { run(e, operation, fault); });
  } else if (carrier == "tcp") {
    // Who does not come to the start is awaited no longer than who does not come to a call.
    comm::run_tcp_rank(
        comm::read_door(comm::read_world()), options,
        [&](comm::Endpoint& e, int) { run(e, operation, fault, true); },
        options.timeout_seconds > 0 ? options.timeout_seconds : 30);
  } else {
    comm::LocalWorld world(std::stoi(carrier), options);
    comm::run_ranks(world, [&](int rank) { run(*world.endpoint(rank), operation, fault); });
  }
  fmt::print("all calls made\n");
  return 0;
}

}  // namespace
}  // namespace pleat

int main(int argc, char** argv) {
  try {
    return pleat::run_all(argc, argv);
  } catch (const pleat::base::Error& e) {
    fmt::print(stderr, "pleat: {}\n", e.what());
    return static_cast<int>(e.code());
  }
}
