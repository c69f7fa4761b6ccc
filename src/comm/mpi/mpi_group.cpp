#include "comm/mpi/mpi_group.h"

#include <algorithm>
#include <climits>
#include <cstring>

#include "base/error.h"
#include "comm/mpi/signature_bytes.h"
#include "comm/reduce.h"

namespace pleat::comm::mpi {
namespace {

constexpr int kCollectiveTag = 1, kCheckTag = 2, kFirstMessageTag = 16;

MPI_Datatype type_of(tensor::Dtype dtype) {
  switch (dtype) {
    case tensor::Dtype::F32:
      return MPI_FLOAT;
    case tensor::Dtype::F64:
      return MPI_DOUBLE;
    case tensor::Dtype::I32:
      return MPI_INT32_T;
    case tensor::Dtype::I64:
      return MPI_INT64_T;
    case tensor::Dtype::U8:
    case tensor::Dtype::BF16:
    case tensor::Dtype::I16:
      break;
  }
  return MPI_UINT8_T;
}

MPI_Op op_of(Reduce reduce) {
  return reduce == Reduce::Sum ? MPI_SUM : reduce == Reduce::Max ? MPI_MAX : MPI_MIN;
}

int as_int(int64_t count) {
  if (count > INT_MAX)
    base::fail("MPI's own reductions take up to {} elements, got {}; leave comm.mpi_native off", INT_MAX,
               count);
  return static_cast<int>(count);
}

}  // namespace

GroupEnd::GroupEnd(Library& library, MPI_Comm comm, std::string name, std::vector<int> world_ranks, int rank,
                   RankFlight& flight, const Options& options)
    : Communicator(std::move(name), std::move(world_ranks), rank, flight, options.inject),
      library_(library),
      comm_(comm),
      check_(options.check),
      native_(options.mpi_native) {}

// Not MPI_Comm_free: it may wait for members that have failed. The few a run makes end with the library.
GroupEnd::~GroupEnd() = default;

void GroupEnd::abort(const std::string& why) {
  Communicator::abort(why);
  library_.call_off();
}

Exchange GroupEnd::exchange(const Call& call) {
  return Exchange(library_, comm_, world_ranks(),
                  fmt::format("group '{}', {} #{} of stage '{}' on rank {}", name(), name_of(call.operation),
                              call.sequence, call.stage, world_ranks()[static_cast<size_t>(rank())]));
}

void GroupEnd::execute(const Call& call) {
  const int n = size(), me = rank();
  const bool message = call.operation >= Operation::Send;
  if (check_ && !message) compare(call);
  Exchange x = exchange(call);
  const auto part_of = [](auto whole, Parts parts, int r) {
    return whole.subspan(static_cast<size_t>(parts.offsets[static_cast<size_t>(r)]),
                         static_cast<size_t>(parts.counts[static_cast<size_t>(r)]));
  };
  const auto copy = [](std::span<std::byte> to, std::span<const std::byte> from) {
    if (!to.empty() && to.data() != from.data()) std::memcpy(to.data(), from.data(), to.size());
  };
  switch (call.operation) {
    case Operation::AllReduce:
      return native_ ? native_reduction(call) : all_reduce(call);
    case Operation::ReduceScatter:
      return native_ ? native_reduction(call) : reduce_scatter(call);
    case Operation::AllGather:
      for (int step = 1; step < n; ++step) {
        const int to = (me + step) % n, from = (me + n - step) % n;
        x.receive(part_of(call.out, call.send, from), from, kCollectiveTag);
        x.send(call.in, to, kCollectiveTag);
      }
      copy(part_of(call.out, call.send, me), call.in);
      break;
    case Operation::AllToAll:
      for (int step = 1; step < n; ++step) {
        const int to = (me + step) % n, from = (me + n - step) % n;
        x.receive(part_of(call.out, call.receive, from), from, kCollectiveTag);
        x.send(part_of(call.in, call.send, to), to, kCollectiveTag);
      }
      if (call.send.counts[static_cast<size_t>(me)] != call.receive.counts[static_cast<size_t>(me)])
        base::fail("group '{}', all_to_all for stage '{}': rank {} sends {} bytes to itself and awaits {}",
                   name(), call.stage, world_ranks()[static_cast<size_t>(me)],
                   call.send.counts[static_cast<size_t>(me)], call.receive.counts[static_cast<size_t>(me)]);
      copy(part_of(call.out, call.receive, me), part_of(call.in, call.send, me));
      break;
    case Operation::Broadcast:
      if (me != call.peer) x.receive(call.out, call.peer, kCollectiveTag);
      for (int r = 0; me == call.peer && r < n; ++r) {
        if (r != me) x.send(call.in, r, kCollectiveTag);
      }
      break;
    case Operation::Shift:
      if (n == 1) return copy(call.out, call.in);
      x.receive(call.out, call.from, kCollectiveTag);
      x.send(call.in, call.peer, kCollectiveTag);
      break;
    case Operation::Barrier: {
      MPI_Request request;
      {
        const auto lock = library_.guard();
        require(MPI_Ibarrier(comm_, &request), "MPI_Ibarrier");
      }
      x.add(request);
      break;
    }
    case Operation::Send:
      x.send(call.in, call.peer, kFirstMessageTag + call.tag);
      break;
    case Operation::Receive:
      x.receive(call.out, call.peer, kFirstMessageTag + call.tag);
      break;
    case Operation::SendReceive:
      x.receive(call.out, call.from, kFirstMessageTag + call.tag);
      x.send(call.in, call.peer, kFirstMessageTag + call.tag);
      break;
  }
  x.wait();
}

void GroupEnd::compare(const Call& call) {
  const int n = size(), me = rank();
  const Signature mine = signature_of(call);
  const std::vector<std::byte> out = to_bytes(mine, n);
  std::vector<std::vector<std::byte>> in(static_cast<size_t>(n), std::vector<std::byte>(out.size()));
  Exchange x = exchange(call);
  for (int step = 1; step < n; ++step) {
    x.receive(in[static_cast<size_t>((me + n - step) % n)], (me + n - step) % n, kCheckTag);
    x.send(out, (me + step) % n, kCheckTag);
  }
  x.wait();
  std::vector<Signature> signatures;
  std::vector<const Signature*> by_rank;
  for (int r = 0; r < n; ++r)
    signatures.push_back(r == me ? from_bytes(out) : from_bytes(in[static_cast<size_t>(r)]));
  for (const Signature& s : signatures) by_rank.push_back(&s);
  const std::string difference = first_difference(by_rank, world_ranks(), name(), CompareStage::Yes);
  if (!difference.empty()) base::fail("{}", difference);
}

std::vector<const std::byte*> GroupEnd::collect(const Call& call, Parts parts) {
  const int n = size(), me = rank();
  const auto part = [&](int r) {
    return call.in.subspan(static_cast<size_t>(parts.offsets[static_cast<size_t>(r)]),
                           static_cast<size_t>(parts.counts[static_cast<size_t>(r)]));
  };
  const size_t mine = part(me).size();
  // Each part on its own cache line, so that every element type is aligned.
  const size_t stride = (mine + 63) / 64 * 64;
  if (scratch_.size() < stride * static_cast<size_t>(n)) scratch_.resize(stride * static_cast<size_t>(n));
  std::vector<const std::byte*> ins(static_cast<size_t>(n));
  ins[static_cast<size_t>(me)] = part(me).data();
  Exchange x = exchange(call);
  for (int step = 1; step < n; ++step) {
    const int to = (me + step) % n, from = (me + n - step) % n;
    std::byte* place = scratch_.data() + stride * static_cast<size_t>(from);
    x.receive({place, mine}, from, kCollectiveTag);
    x.send(part(to), to, kCollectiveTag);
    ins[static_cast<size_t>(from)] = place;
  }
  x.wait();
  return ins;
}

void GroupEnd::all_reduce(const Call& call) {
  const int64_t n = size(), element = tensor::size_of(call.dtype);
  const auto count = static_cast<int64_t>(call.in.size()) / element;
  std::vector<int64_t> counts, offsets;
  for (int64_t r = 0; r < n; ++r) {
    counts.push_back((count / n + (r < count % n ? 1 : 0)) * element);
    offsets.push_back(r == 0 ? 0 : offsets.back() + counts[static_cast<size_t>(r - 1)]);
  }
  const std::vector<const std::byte*> ins = collect(call, {counts, offsets});
  const auto me = static_cast<size_t>(rank());
  std::byte* const out = call.out.data() + offsets[me];
  reduce_in_order(ins, {&out, 1}, counts[me] / element, call.dtype, call.reduce);
  Exchange x = exchange(call);
  const auto slice = [&](int r) {
    return call.out.subspan(static_cast<size_t>(offsets[static_cast<size_t>(r)]),
                            static_cast<size_t>(counts[static_cast<size_t>(r)]));
  };
  for (int step = 1; step < size(); ++step) {
    const int to = (rank() + step) % size(), from = (rank() + size() - step) % size();
    x.receive(slice(from), from, kCollectiveTag);
    x.send(slice(rank()), to, kCollectiveTag);
  }
  x.wait();
}

void GroupEnd::reduce_scatter(const Call& call) {
  const std::vector<const std::byte*> ins = collect(call, call.send);
  std::byte* const out = call.out.data();
  reduce_in_order(ins, {&out, 1}, static_cast<int64_t>(call.out.size()) / tensor::size_of(call.dtype),
                  call.dtype, call.reduce);
}

void GroupEnd::native_reduction(const Call& call) {
  const int64_t element = tensor::size_of(call.dtype);
  Exchange x = exchange(call);
  MPI_Request request;
  if (call.operation == Operation::AllReduce) {
    const int count = as_int(static_cast<int64_t>(call.in.size()) / element);
    const void* in = call.in.data() == call.out.data() ? MPI_IN_PLACE : call.in.data();
    {
      const auto lock = library_.guard();
      require(MPI_Iallreduce(in, call.out.data(), count, type_of(call.dtype), op_of(call.reduce), comm_,
                             &request),
              "MPI_Iallreduce");
    }
    x.add(request);
    return x.wait();
  }
  std::vector<int> counts;
  for (const int64_t bytes : call.send.counts) counts.push_back(as_int(bytes / element));
  // MPI does not allow the result inside the input.
  if (scratch_.size() < call.out.size()) scratch_.resize(call.out.size());
  {
    const auto lock = library_.guard();
    require(MPI_Ireduce_scatter(call.in.data(), scratch_.data(), counts.data(), type_of(call.dtype),
                                op_of(call.reduce), comm_, &request),
            "MPI_Ireduce_scatter");
  }
  x.add(request);
  x.wait();
  if (!call.out.empty()) std::memcpy(call.out.data(), scratch_.data(), call.out.size());
}

}  // namespace pleat::comm::mpi
