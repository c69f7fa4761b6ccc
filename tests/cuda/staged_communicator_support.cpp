#include "cuda/staged_communicator_support.h"

#include <algorithm>
#include <thread>

#include "base/error.h"
#include "device/cuda/cuda.h"

namespace pleat::testing {
namespace {

using comm::Call;
using comm::Operation;

// The buffers of a call on the device; those that overlap do so there.
class Buffers {
 public:
  explicit Buffers(const Call& call) : call_(call) {
    const std::byte *in = call.in.data(), *out = call.out.data();
    const auto in_bytes = static_cast<int64_t>(call.in.size()),
               out_bytes = static_cast<int64_t>(call.out.size());
    const bool together = in_bytes > 0 && out_bytes > 0 && in < out + out_bytes && out < in + in_bytes;
    int64_t in_at = 0, out_at = (in_bytes + 255) / 256 * 256;
    if (together) in_at = std::max<int64_t>(0, in - out), out_at = std::max<int64_t>(0, out - in);
    memory_ = std::make_unique<device::cuda::Memory>(std::max(in_at + in_bytes, out_at + out_bytes));
    in_ = memory_->data() + in_at, out_ = memory_->data() + out_at;
    lane_.copy_in(out_, out, out_bytes);
    lane_.copy_in(in_, in, in_bytes);
    lane_.synchronize();
  }
  comm::Bytes in() const { return {in_, call_.in.size()}; }
  comm::MutableBytes out() const { return {out_, call_.out.size()}; }
  void fetch() {
    lane_.copy_out(call_.out.data(), out_, static_cast<int64_t>(call_.out.size()));
    lane_.synchronize();
  }

 private:
  const Call& call_;
  device::cuda::Lane lane_;
  std::unique_ptr<device::cuda::Memory> memory_;
  std::byte *in_ = nullptr, *out_ = nullptr;
};

class Staged final : public comm::Communicator {
 public:
  Staged(comm::Communicator& inner, comm::RankFlight& flight)
      : Communicator(inner.name() + " staged", {inner.world_ranks().begin(), inner.world_ranks().end()},
                     inner.rank(), flight),
        inner_(inner) {}

 private:
  void execute(const Call& call) override {
    Buffers b(call);
    std::vector<int64_t> counts(call.send.counts.begin(), call.send.counts.end());
    switch (call.operation) {
      case Operation::AllReduce:
        inner_.all_reduce(call.stage, b.in(), b.out(), call.dtype, call.reduce);
        break;
      case Operation::ReduceScatter:
        for (int64_t& count : counts) count /= tensor::size_of(call.dtype);
        inner_.reduce_scatter_v(call.stage, b.in(), b.out(), counts, call.dtype, call.reduce);
        break;
      case Operation::AllGather:
        inner_.all_gather_v(call.stage, b.in(), b.out(), counts);
        break;
      case Operation::AllToAll:
        inner_.all_to_all_v(call.stage, b.in(), call.send, b.out(), call.receive);
        break;
      case Operation::Broadcast:
        inner_.broadcast(call.stage, b.out(), call.peer);
        break;
      case Operation::Shift:
        inner_.shift(call.stage, b.in(), b.out());
        break;
      case Operation::Barrier:
        inner_.barrier(call.stage);
        break;
      case Operation::Send:
        inner_.send(call.stage, call.peer, call.tag, b.in());
        break;
      case Operation::Receive:
        inner_.receive(call.stage, call.peer, call.tag, b.out());
        break;
      case Operation::SendReceive:
        inner_.send_receive(call.stage, call.peer, b.in(), call.from, b.out(), call.tag);
        break;
    }
    while (!inner_.watch()) std::this_thread::yield();  // enqueued calls are done later
    b.fetch();
  }

  comm::Communicator& inner_;
};

}  // namespace

std::unique_ptr<comm::Communicator> staged(comm::Communicator& inner, comm::RankFlight& flight) {
  return std::make_unique<Staged>(inner, flight);
}

}  // namespace pleat::testing
