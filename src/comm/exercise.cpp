#include "comm/exercise.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace pleat::comm {
namespace {

// Element i of rank r: small whole numbers, so that every sum is exact.
float value(int rank, int64_t i) { return static_cast<float>((rank + 1) * (i % 97 + 1)); }

// One operation: does it with `count` elements per rank and says what is wrong with the answer.
struct Trial {
  const char* name;
  double sent_fraction;  // below 0: moves nothing; or else of size() * count elements: what a rank brings
                         // that others need
  std::function<void()> run;
  std::function<std::string()> verify;
};

class Bench {
 public:
  Bench(Communicator& c, ExerciseMemory& memory, int64_t count)
      : c_(c), memory_(memory), n_(c.size()), me_(c.rank()), count_(count), whole_(n_ * count) {
    seen_.resize(static_cast<size_t>(whole_));
    for (int64_t i = 0; i < whole_; ++i) seen_[static_cast<size_t>(i)] = value(me_, i);
    in_ = memory_.allocate(whole_ * 4);
    out_ = memory_.allocate(whole_ * 4);
    memory_.write(in_, seen_.data(), whole_ * 4);
    for (int r = 0; r < n_; ++r) {
      elements_.push_back(count);
      bytes_.push_back(count * 4);
      offsets_.push_back(r * count * 4);
    }
  }

  std::vector<Trial> trials() {
    const float all = static_cast<float>(n_ * (n_ + 1) / 2);  // sum of rank + 1
    const auto summed = [all](int64_t i) { return all * value(0, i); };
    const double peers = n_ - 1, share = 1.0 / n_;
    return {
        {"all_reduce", share,
         [this] { c_.all_reduce(kStage, part(in_, count_), part(out_, count_), kType, Reduce::Sum); },
         [=, this] { return compare(count_, summed); }},
        {"all_reduce max", share,
         [this] { c_.all_reduce(kStage, part(in_, count_), part(out_, count_), kType, Reduce::Max); },
         [=, this] { return compare(count_, [this](int64_t i) { return value(n_ - 1, i); }); }},
        {"reduce_scatter", peers * share,
         [this] { c_.reduce_scatter(kStage, part(in_, whole_), part(out_, count_), kType, Reduce::Sum); },
         [=, this] { return compare(count_, [=, this](int64_t i) { return summed(me_ * count_ + i); }); }},
        {"reduce_scatter_v", peers * share,
         [this] {
           c_.reduce_scatter_v(kStage, part(in_, whole_), part(out_, count_), elements_, kType, Reduce::Sum);
         },
         [=, this] { return compare(count_, [=, this](int64_t i) { return summed(me_ * count_ + i); }); }},
        {"all_gather", peers * share,
         [this] { c_.all_gather(kStage, part(in_, count_), part(out_, whole_)); },
         [this] {
           return compare(whole_,
                          [this](int64_t i) { return value(static_cast<int>(i / count_), i % count_); });
         }},
        {"all_gather_v", peers * share,
         [this] { c_.all_gather_v(kStage, part(in_, count_), part(out_, whole_), bytes_); },
         [this] {
           return compare(whole_,
                          [this](int64_t i) { return value(static_cast<int>(i / count_), i % count_); });
         }},
        {"all_to_all_v", peers * share,
         [this] {
           c_.all_to_all_v(kStage, part(in_, whole_), {bytes_, offsets_}, part(out_, whole_),
                           {bytes_, offsets_});
         },
         [this] {
           return compare(whole_, [this](int64_t i) {
             return value(static_cast<int>(i / count_), me_ * count_ + i % count_);
           });
         }},
        {"broadcast", share,
         [this] {
           if (me_ == n_ - 1) memory_.copy(out_, in_, count_ * 4);
           c_.broadcast(kStage, part(out_, count_), n_ - 1);
         },
         [this] { return compare(count_, [this](int64_t i) { return value(n_ - 1, i); }); }},
        {"shift", share, [this] { c_.shift(kStage, part(in_, count_), part(out_, count_)); },
         [this] { return compare(count_, [this](int64_t i) { return value((me_ + n_ - 1) % n_, i); }); }},
        {"send_receive", share,
         [this] {
           c_.send_receive(kStage, (me_ + 1) % n_, part(in_, count_), (me_ + n_ - 1) % n_, part(out_, count_),
                           1);
         },
         [this] { return compare(count_, [this](int64_t i) { return value((me_ + n_ - 1) % n_, i); }); }},
        {"send, receive", share, [this] { down_the_line(); },
         [this] { return compare(count_, [this](int64_t i) { return value(std::max(me_ - 1, 0), i); }); }},
        {"barrier", -1, [this] { c_.barrier(kStage); }, [] { return std::string(); }},
    };
  }

  void poison() {
    std::fill(seen_.begin(), seen_.end(), std::numeric_limits<float>::quiet_NaN());
    memory_.write(out_, seen_.data(), whole_ * 4);
  }
  void run(const Trial& trial) {
    trial.run();
    memory_.wait(c_);
  }

 private:
  static constexpr const char* kStage = "doctor";
  static constexpr auto kType = tensor::Dtype::F32;

  static MutableBytes part(std::byte* v, int64_t count) { return {v, static_cast<size_t>(count) * 4}; }

  // Even ranks send first, so that nobody waits for the whole line.
  void down_the_line() {
    const auto send = [this] {
      if (me_ + 1 < n_) c_.send(kStage, me_ + 1, 2, part(in_, count_));
    };
    if (me_ % 2 == 0) send();
    if (me_ > 0)
      c_.receive(kStage, me_ - 1, 2, part(out_, count_));
    else
      memory_.copy(out_, in_, count_ * 4);
    if (me_ % 2 != 0) send();
  }

  template <class F>
  std::string compare(int64_t count, F want) {
    memory_.read(seen_.data(), out_, count * 4);
    for (int64_t i = 0; i < count; ++i) {
      if (seen_[static_cast<size_t>(i)] != want(i))
        return fmt::format("element {} is {}, needed {}", i, seen_[static_cast<size_t>(i)], want(i));
    }
    return "";
  }

  Communicator& c_;
  ExerciseMemory& memory_;
  int n_, me_;
  int64_t count_, whole_;
  std::byte *in_ = nullptr, *out_ = nullptr;
  std::vector<float> seen_;  // on the host: what is put there, what came out
  std::vector<int64_t> elements_, bytes_, offsets_;
};

// The slowest rank's median; the answer of a first call, into poisoned memory, is checked.
double median_seconds(Communicator& words, Bench& bench, const Trial& trial, int repeats,
                      std::string& fault) {
  bench.poison();
  bench.run(trial);
  fault = trial.verify();
  words.barrier("doctor");
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    const int64_t start = steady_ns();
    bench.run(trial);
    times.push_back(static_cast<double>(steady_ns() - start) * 1e-9);
  }
  std::sort(times.begin(), times.end());
  double seconds = times[times.size() / 2];
  words.all_reduce("doctor time", std::span(&seconds, 1), Reduce::Max);
  return seconds;
}

// The lowest faulty rank's text, the same on all ranks.
std::string agreed(Communicator& c, const std::string& fault) {
  int32_t first = fault.empty() ? c.size() : c.rank();
  c.all_reduce("doctor fault", std::span(&first, 1), Reduce::Min);
  if (first == c.size()) return "";
  char text[160] = {};
  if (c.rank() == first) std::memcpy(text, fault.data(), std::min(fault.size(), sizeof text - 1));
  c.broadcast("doctor fault", std::as_writable_bytes(std::span(text)), first);
  return fmt::format("rank {}: {}", c.world_ranks()[static_cast<size_t>(first)], text);
}

}  // namespace

std::vector<Exercised> exercise(Communicator& group, const ExerciseSize& size) {
  return exercise(group, group, *exercise_on_host(), size);
}

std::vector<Exercised> exercise(Communicator& group, Communicator& words, ExerciseMemory& memory,
                                const ExerciseSize& size) {
  if (size.bytes < 8 || size.bytes % 4 != 0 || size.repeats < 1)
    base::fail(
        "cannot exercise with {} bytes and {} repeats; needed a multiple of 4 from 8 on, and 1 or more",
        size.bytes, size.repeats);
  Bench small(group, memory, 2), large(group, memory, size.bytes / 4);
  const std::vector<Trial> quick = small.trials(), heavy = large.trials();
  std::vector<Exercised> results;
  for (size_t i = 0; i < quick.size(); ++i) {
    Exercised result;
    result.operation = quick[i].name;
    std::string small_fault, large_fault;
    result.latency_seconds = median_seconds(words, small, quick[i], 4 * size.repeats, small_fault);
    if (heavy[i].sent_fraction >= 0) {
      const double seconds = median_seconds(words, large, heavy[i], size.repeats, large_fault);
      const double sent = heavy[i].sent_fraction * static_cast<double>(size.bytes) * group.size();
      result.bytes_per_second = sent / std::max(seconds, 1e-9);
    }
    result.fault = agreed(words, small_fault.empty() ? large_fault : small_fault);
    results.push_back(result);
  }
  return results;
}

}  // namespace pleat::comm
