#include "bench/link_times.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/error.h"
#include "comm/local/local_world.h"

namespace pleat::bench {
namespace {

using comm::Communicator;

constexpr tensor::Dtype kLinkType = tensor::Dtype::F32;
constexpr const char* kLinkStage = "links";

// Elements of the largest value of a call by which a rank sends `bytes`, a multiple of the ranks.
int64_t elements_of(comm::Operation operation, int64_t bytes, int64_t n) {
  double whole = double(bytes) / 4;
  if (operation == comm::Operation::AllReduce) whole /= 2;
  const bool all_of_it = operation == comm::Operation::Shift || operation == comm::Operation::Send;
  if (!all_of_it) whole *= double(n) / double(n - 1);
  return std::max<int64_t>(static_cast<int64_t>(whole) / n, 1) * n;
}

class LinkCall {
 public:
  LinkCall(Communicator& group, comm::Operation operation, int64_t elements)
      : group_(group),
        operation_(operation),
        n_(group.size()),
        part_(elements / n_),
        in_(static_cast<size_t>(elements), 1.0f),
        out_(static_cast<size_t>(elements)),
        counts_(static_cast<size_t>(n_), part_ * 4),
        offsets_(counts_.size()) {
    for (size_t r = 0; r < offsets_.size(); ++r) offsets_[r] = static_cast<int64_t>(r) * part_ * 4;
  }

  void run() {
    const auto whole_in = std::as_bytes(std::span(in_)),
               part_in = whole_in.first(static_cast<size_t>(part_ * 4));
    const auto whole_out = std::as_writable_bytes(std::span(out_)),
               part_out = whole_out.first(static_cast<size_t>(part_ * 4));
    const int me = group_.rank();
    switch (operation_) {
      case comm::Operation::AllGather:
        return group_.all_gather(kLinkStage, part_in, whole_out);
      case comm::Operation::ReduceScatter:
        return group_.reduce_scatter(kLinkStage, whole_in, part_out, kLinkType, comm::Reduce::Sum);
      case comm::Operation::AllReduce:
        return group_.all_reduce(kLinkStage, whole_in, whole_out, kLinkType, comm::Reduce::Sum);
      case comm::Operation::AllToAll:
        return group_.all_to_all_v(kLinkStage, whole_in, {counts_, offsets_}, whole_out, {counts_, offsets_});
      case comm::Operation::Shift:
        return group_.shift(kLinkStage, whole_in, whole_out);
      default:  // messages of pairs: 0 to 1, 2 to 3
        if (me % 2 == 0)
          group_.send(kLinkStage, me + 1, 0, whole_in);
        else
          group_.receive(kLinkStage, me - 1, 0, whole_out);
    }
  }

 private:
  Communicator& group_;
  comm::Operation operation_;
  int64_t n_, part_;
  std::vector<float> in_, out_;
  std::vector<int64_t> counts_, offsets_;
};

// What a rank does between two exchanges: a few hundred microseconds that need nobody and no memory.
void work_alone() {
  constexpr int kSteps = 100'000;
  volatile double x = 1;
  for (int i = 0; i < kSteps; ++i) x = x * 0.999999 + 1e-6;
}

// The median time of a round, the slowest rank's.
template <class Round>
double round_seconds(Communicator& group, int repeats, const Round& round) {
  std::vector<double> times;
  group.barrier(kLinkStage);
  auto start = std::chrono::steady_clock::now();
  for (int i = 0; i <= repeats; ++i) {
    round();
    const auto now = std::chrono::steady_clock::now();
    if (i > 0)
      times.push_back(std::chrono::duration<double>(now - start).count());  // the first touches the memory
    start = now;
  }
  std::sort(times.begin(), times.end());
  double median = times[times.size() / 2];
  group.all_reduce(kLinkStage, std::span(&median, 1), comm::Reduce::Max);
  return median;
}

// As a step has them: ranks work, meet, and work on. So it includes that whoever came first sleeps and is woken, and
// that nobody comes at the same time to the nanosecond.
double link_seconds(Communicator& group, comm::Operation operation, int64_t elements, int repeats) {
  LinkCall call(group, operation, elements);
  const double alone = round_seconds(group, repeats, [] { work_alone(); });
  const double with = round_seconds(group, repeats, [&] {
    work_alone();
    call.run();
  });
  return std::max(with - alone, 1e-6);
}

}  // namespace

std::vector<cost::LinkTime> measure_links(const LinkOptions& options,
                                          const std::function<void(const std::string&)>& note) {
  std::vector<cost::LinkTime> out;
  for (const int n : options.ranks) {
    if (n < 2 || n % 2 != 0)
      base::fail("links are measured among an even number of ranks from 2 on; got {}", n);
    comm::LocalWorld world(n);
    std::vector<int> all(static_cast<size_t>(n));
    std::iota(all.begin(), all.end(), 0);
    for (const comm::Operation operation :
         {comm::Operation::AllGather, comm::Operation::ReduceScatter, comm::Operation::AllReduce,
          comm::Operation::AllToAll, comm::Operation::Shift, comm::Operation::Send})
      for (int64_t bytes = options.least_bytes; bytes <= options.most_bytes; bytes *= 4) {
        const int64_t elements = elements_of(operation, bytes, n);
        const int repeats = static_cast<int>(
            std::clamp<int64_t>(options.most_bytes / bytes, options.repeats, 10 * options.repeats));
        double seconds = 0;
        comm::run_ranks(world, [&](int rank) {
          const auto group = world.group("links", all, rank);
          const double mine = link_seconds(*group, operation, elements, repeats);
          if (rank == 0) seconds = mine;
        });
        out.push_back({std::string(comm::name_of(operation)), n, bytes, seconds * 1e9});
      }
    if (note) note(fmt::format("exchanges of {} ranks", n));
  }
  return out;
}

}  // namespace pleat::bench
