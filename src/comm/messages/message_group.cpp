#include "comm/messages/message_group.h"

#include <cstring>

#include "base/error.h"
#include "comm/messages/signature_bytes.h"
#include "comm/reduce.h"

namespace pleat::comm {
namespace {

constexpr int kCollectiveTag = 1, kCheckTag = 2, kMeetTag = 3, kFirstMessageTag = 16;

template <class Byte>
std::span<Byte> part_of(std::span<Byte> whole, Parts parts, int rank) {
  const auto r = static_cast<size_t>(rank);
  return whole.subspan(static_cast<size_t>(parts.offsets[r]), static_cast<size_t>(parts.counts[r]));
}

void copy(std::span<std::byte> to, std::span<const std::byte> from) {
  if (!to.empty() && to.data() != from.data()) std::memcpy(to.data(), from.data(), to.size());
}

}  // namespace

MessageGroup::MessageGroup(std::string name, std::vector<int> world_ranks, int rank, RankFlight& flight,
                           const Options& options)
    : Communicator(std::move(name), std::move(world_ranks), rank, flight, options.inject),
      check_(options.check) {}

std::unique_ptr<Exchange> MessageGroup::exchange(const Call& call) {
  return exchange(fmt::format("group '{}', {} #{} of stage '{}' on rank {}", name(), name_of(call.operation),
                              call.sequence, call.stage, world_ranks()[static_cast<size_t>(rank())]));
}

void MessageGroup::execute(const Call& call) {
  const int n = size(), me = rank();
  const bool message = call.operation >= Operation::Send;
  if (check_ && !message) compare(call);
  const std::unique_ptr<Exchange> x = exchange(call);
  switch (call.operation) {
    case Operation::AllReduce:
      return all_reduce(call);
    case Operation::ReduceScatter:
      return reduce_scatter(call);
    case Operation::AllGather:
      for (int step = 1; step < n; ++step) {
        const int to = (me + step) % n, from = (me + n - step) % n;
        x->receive(part_of(call.out, call.send, from), from, kCollectiveTag);
        x->send(call.in, to, kCollectiveTag);
      }
      copy(part_of(call.out, call.send, me), call.in);
      break;
    case Operation::AllToAll:
      for (int step = 1; step < n; ++step) {
        const int to = (me + step) % n, from = (me + n - step) % n;
        x->receive(part_of(call.out, call.receive, from), from, kCollectiveTag);
        x->send(part_of(call.in, call.send, to), to, kCollectiveTag);
      }
      if (call.send.counts[static_cast<size_t>(me)] != call.receive.counts[static_cast<size_t>(me)])
        base::fail("group '{}', all_to_all for stage '{}': rank {} sends {} bytes to itself and awaits {}",
                   name(), call.stage, world_ranks()[static_cast<size_t>(me)],
                   call.send.counts[static_cast<size_t>(me)], call.receive.counts[static_cast<size_t>(me)]);
      copy(part_of(call.out, call.receive, me), part_of(call.in, call.send, me));
      break;
    case Operation::Broadcast:
      if (me != call.peer) x->receive(call.out, call.peer, kCollectiveTag);
      for (int r = 0; me == call.peer && r < n; ++r) {
        if (r != me) x->send(call.in, r, kCollectiveTag);
      }
      break;
    case Operation::Shift:
      if (n == 1) return copy(call.out, call.in);
      x->receive(call.out, call.from, kCollectiveTag);
      x->send(call.in, call.peer, kCollectiveTag);
      break;
    case Operation::Barrier:
      return meet(call);
    case Operation::Send:
      x->send(call.in, call.peer, kFirstMessageTag + call.tag);
      break;
    case Operation::Receive:
      x->receive(call.out, call.peer, kFirstMessageTag + call.tag);
      break;
    case Operation::SendReceive:
      x->receive(call.out, call.from, kFirstMessageTag + call.tag);
      x->send(call.in, call.peer, kFirstMessageTag + call.tag);
      break;
  }
  x->wait();
}

void MessageGroup::compare(const Call& call) {
  const int n = size(), me = rank();
  const std::vector<std::byte> out = to_bytes(signature_of(call), n);
  std::vector<std::vector<std::byte>> in(static_cast<size_t>(n), std::vector<std::byte>(out.size()));
  const std::unique_ptr<Exchange> x = exchange(call);
  for (int step = 1; step < n; ++step) {
    x->receive(in[static_cast<size_t>((me + n - step) % n)], (me + n - step) % n, kCheckTag);
    x->send(out, (me + step) % n, kCheckTag);
  }
  x->wait();
  std::vector<Signature> signatures;
  std::vector<const Signature*> by_rank;
  for (int r = 0; r < n; ++r)
    signatures.push_back(r == me ? from_bytes(out) : from_bytes(in[static_cast<size_t>(r)]));
  for (const Signature& s : signatures) by_rank.push_back(&s);
  const std::string difference = first_difference(by_rank, world_ranks(), name(), CompareStage::Yes);
  if (!difference.empty()) base::fail("{}", difference);
}

std::vector<const std::byte*> MessageGroup::collect(const Call& call, Parts parts) {
  const int n = size(), me = rank();
  const size_t mine = part_of(call.in, parts, me).size();
  // Each part on its own cache line, so that every element type is aligned.
  const size_t stride = (mine + 63) / 64 * 64;
  if (scratch_.size() < stride * static_cast<size_t>(n)) scratch_.resize(stride * static_cast<size_t>(n));
  std::vector<const std::byte*> ins(static_cast<size_t>(n));
  ins[static_cast<size_t>(me)] = part_of(call.in, parts, me).data();
  const std::unique_ptr<Exchange> x = exchange(call);
  for (int step = 1; step < n; ++step) {
    const int to = (me + step) % n, from = (me + n - step) % n;
    std::byte* place = scratch_.data() + stride * static_cast<size_t>(from);
    x->receive({place, mine}, from, kCollectiveTag);
    x->send(part_of(call.in, parts, to), to, kCollectiveTag);
    ins[static_cast<size_t>(from)] = place;
  }
  x->wait();
  return ins;
}

void MessageGroup::all_reduce(const Call& call) {
  const int64_t n = size(), element = tensor::size_of(call.dtype);
  const auto count = static_cast<int64_t>(call.in.size()) / element;
  std::vector<int64_t> counts, offsets;
  for (int64_t r = 0; r < n; ++r) {
    counts.push_back((count / n + (r < count % n ? 1 : 0)) * element);
    offsets.push_back(r == 0 ? 0 : offsets.back() + counts[static_cast<size_t>(r - 1)]);
  }
  const Parts parts{counts, offsets};
  const std::vector<const std::byte*> ins = collect(call, parts);
  const auto me = static_cast<size_t>(rank());
  std::byte* const out = call.out.data() + offsets[me];
  reduce_in_order(ins, {&out, 1}, counts[me] / element, call.dtype, call.reduce);
  const std::unique_ptr<Exchange> x = exchange(call);
  for (int step = 1; step < size(); ++step) {
    const int to = (rank() + step) % size(), from = (rank() + size() - step) % size();
    x->receive(part_of(call.out, parts, from), from, kCollectiveTag);
    x->send(part_of(call.out, parts, rank()), to, kCollectiveTag);
  }
  x->wait();
}

void MessageGroup::reduce_scatter(const Call& call) {
  const std::vector<const std::byte*> ins = collect(call, call.send);
  std::byte* const out = call.out.data();
  reduce_in_order(ins, {&out, 1}, static_cast<int64_t>(call.out.size()) / tensor::size_of(call.dtype),
                  call.dtype, call.reduce);
}

// In round k everybody hears from who is 2^k places before it: after the last round, of everybody.
void MessageGroup::meet(const Call& call) {
  const int n = size(), me = rank();
  for (int step = 1; step < n; step *= 2) {
    const std::unique_ptr<Exchange> x = exchange(call);
    x->receive({}, (me + n - step) % n, kMeetTag);
    x->send({}, (me + step) % n, kMeetTag);
    x->wait();
  }
}

}  // namespace pleat::comm
