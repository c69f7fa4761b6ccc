#include "comm/mirror/mirror_world.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/error.h"
#include "base/rng.h"
#include "comm/reduce.h"

namespace pleat::comm {
namespace {

// `in` over and over until `out` is full; nothing to repeat leaves zeros. `in` may be a part of `out`, if it is then
// written where it lies or not at all.
void repeat(Bytes in, MutableBytes out) {
  if (in.empty()) {
    std::fill(out.begin(), out.end(), std::byte{});
    return;
  }
  for (size_t at = 0; at < out.size(); at += in.size()) {
    const size_t bytes = std::min(in.size(), out.size() - at);
    if (out.data() + at != in.data()) std::memmove(out.data() + at, in.data(), bytes);
  }
}

class MirrorGroup final : public Communicator {
 public:
  MirrorGroup(std::string name, std::vector<int> ranks, int member, std::shared_ptr<RankFlight> flight)
      : Communicator(std::move(name), std::move(ranks), member, *flight), kept_(std::move(flight)) {}

 private:
  void execute(const Call& call) override {
    const auto n = static_cast<size_t>(size()), me = static_cast<size_t>(rank());
    switch (call.operation) {
      case Operation::AllReduce:
        return reduce(call, call.in.data(), static_cast<int64_t>(call.in.size()));
      case Operation::ReduceScatter:
        return reduce(call, call.in.data() + call.send.offsets[me], call.send.counts[me]);
      case Operation::AllGather:
        for (size_t r = 0; r < n; ++r) repeat(call.in, part(call.out, call.send, r));
        return;
      case Operation::AllToAll: {
        const Bytes mine = call.in.subspan(static_cast<size_t>(call.send.offsets[me]),
                                           static_cast<size_t>(call.send.counts[me]));
        for (size_t r = 0; r < n; ++r) repeat(mine, part(call.out, call.receive, r));
        return;
      }
      case Operation::Shift:
      case Operation::SendReceive:
        return repeat(call.in, call.out);
      case Operation::Receive:
        return receive_numbers(call.out);
      case Operation::Broadcast:
      case Operation::Barrier:
      case Operation::Send:
        return;
    }
    PLEAT_CHECK(false, "no such operation: {}", static_cast<int>(call.operation));
  }

  static MutableBytes part(MutableBytes whole, Parts parts, size_t r) {
    return whole.subspan(static_cast<size_t>(parts.offsets[r]), static_cast<size_t>(parts.counts[r]));
  }

  void reduce(const Call& call, const std::byte* mine, int64_t bytes) const {
    const std::vector<const std::byte*> ins(static_cast<size_t>(size()), mine);
    std::byte* const out = call.out.data();
    reduce_in_order(ins, {&out, 1}, bytes / tensor::size_of(call.dtype), call.dtype, call.reduce);
  }

  // A message says no type. Words 0x3F80 to 0x3FBF with any sign are 1 to 1.5 as bf16 and, as the upper half, as f32;
  // as the upper quarter of f64 they are 2^-7 to 2^-3.
  void receive_numbers(MutableBytes out) {
    const std::lock_guard lock(mutex_);
    if (numbers_.size() * 2 < out.size()) {
      const base::RandomStream random(1, base::RandomUse::Test, 0, 0);
      for (size_t i = numbers_.size(); i * 2 < out.size(); ++i) {
        const auto draw = static_cast<uint16_t>(random.uniform(i) * 128);
        numbers_.push_back(static_cast<uint16_t>(0x3F80 | (draw & 0x3F) | ((draw & 0x40) << 9)));
      }
    }
    if (!out.empty()) std::memcpy(out.data(), numbers_.data(), out.size());
  }

  std::shared_ptr<RankFlight> kept_;
  std::mutex mutex_;  // messages may run beside each other
  std::vector<uint16_t> numbers_;
};

class MirrorEndpoint final : public Endpoint {
 public:
  MirrorEndpoint(int size, int rank) : size_(size), rank_(rank), flight_(new RankFlight()) {
    flight_->start(getpid());
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Communicator> group(const std::string& name, std::span<const int> ranks, Buffers buffers,
                                      void*) override {
    if (buffers == Buffers::Device)
      base::fail(
          "group '{}': a rank that runs with its mirror images has buffers in host memory, not on a GPU",
          name);
    const auto me = std::find(ranks.begin(), ranks.end(), rank_);
    if (me == ranks.end()) base::fail("group '{}': rank {} is not in it", name, rank_);
    for (const int r : ranks)
      if (r < 0 || r >= size_) base::fail("group '{}': rank {} is not in the world of {}", name, r, size_);
    return std::make_unique<MirrorGroup>(name, std::vector<int>(ranks.begin(), ranks.end()),
                                         static_cast<int>(me - ranks.begin()), flight_);
  }
  std::string why_no_windows(std::span<const int>, Buffers) override {
    return "the mirror images of a rank have no memory of their own";
  }

 private:
  int size_, rank_;
  std::shared_ptr<RankFlight> flight_;
};

}  // namespace

std::unique_ptr<Endpoint> mirror_endpoint(int size, int rank) {
  if (size < 1 || rank < 0 || rank >= size) base::fail("rank {} is not in a world of {}", rank, size);
  return std::make_unique<MirrorEndpoint>(size, rank);
}

}  // namespace pleat::comm
