#include "interpret/run/collectives.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "kernels/contract.h"

namespace pleat::interpret {

// All phases of a collective have the same arguments, so one phase's struct reads them all.
namespace signature = program::signature;

using kernels::Arg;
using kernels::Invocation;
using program::KernelKind;

namespace {

int64_t bytes_of(const Arg& a) { return a.size() * tensor::size_of(a.dtype); }
comm::Bytes in(const Arg& a) {
  return {static_cast<const std::byte*>(a.data), static_cast<size_t>(bytes_of(a))};
}
comm::MutableBytes out(const Arg& a) {
  return {static_cast<std::byte*>(a.data), static_cast<size_t>(bytes_of(a))};
}

void all_gather(comm::Communicator& g, const program::Stage&, const Invocation& c, const std::string& name,
                ArgumentMemory&) {
  const signature::all_gather::Forward<Arg> args(c.args);
  g.all_gather(name, in(args.x), out(args.y));
}

void reduce_scatter(comm::Communicator& g, const program::Stage&, const Invocation& c,
                    const std::string& name, ArgumentMemory&) {
  const signature::reduce_scatter::Forward<Arg> args(c.args);
  g.reduce_scatter(name, in(args.x), out(args.y), args.x.dtype, comm::Reduce::Sum);
}

void all_reduce(comm::Communicator& g, const program::Stage&, const Invocation& c, const std::string& name,
                ArgumentMemory&) {
  const signature::all_reduce::Forward<Arg> args(c.args);
  bool maximum = false;
  for (const program::Attr& a : *c.attrs) maximum |= a.key == "max" && a.number != 0;
  g.all_reduce(name, in(args.x), out(args.x), args.x.dtype, maximum ? comm::Reduce::Max : comm::Reduce::Sum);
}

void all_to_all(comm::Communicator& g, const program::Stage&, const Invocation& c, const std::string& name,
                ArgumentMemory&) {
  const signature::all_to_all::Forward<Arg> args(c.args);
  std::array<int64_t, kMaxGroupRanks> counts, offsets;
  const size_t n = static_cast<size_t>(g.size());
  const int64_t part = bytes_of(args.x) / g.size();
  for (size_t i = 0; i < n; ++i) counts[i] = part, offsets[i] = static_cast<int64_t>(i) * part;
  const comm::Parts parts{{counts.data(), n}, {offsets.data(), n}};
  g.all_to_all_v(name, in(args.x), parts, out(args.y), parts);
}

void ring_shift(comm::Communicator& g, const program::Stage&, const Invocation& c, const std::string& name,
                ArgumentMemory&) {
  const signature::ring_shift::Forward<Arg> args(c.args);
  g.shift(name, in(args.x), out(args.y));
}

// Elements of the share of rank r of n elements cut into shares of `shard`.
int64_t share(int64_t n, int64_t shard, int64_t r) { return std::clamp<int64_t>(n - r * shard, 0, shard); }

void reduce_shards(comm::Communicator& g, const program::Stage&, const Invocation& c, const std::string& name,
                   ArgumentMemory& memory) {
  const signature::reduce_shards::BackwardWeight<Arg> args(c.args);
  std::array<int64_t, kMaxGroupRanks> counts;
  const size_t n = static_cast<size_t>(g.size());
  const int64_t shard = c.integer("shard");
  for (size_t r = 0; r < n; ++r) counts[r] = share(args.g.size(), shard, static_cast<int64_t>(r));
  const int64_t mine = counts[static_cast<size_t>(g.rank())], size = tensor::size_of(args.g.dtype);
  const comm::MutableBytes to = out(args.shard);
  g.reduce_scatter_v(name, in(args.g), to.first(static_cast<size_t>(mine * size)), {counts.data(), n},
                     args.g.dtype, comm::Reduce::Sum);
  memory.fill(to.data() + mine * size, 0, static_cast<int64_t>(to.size()) - mine * size);
}

void gather_shards(comm::Communicator& g, const program::Stage&, const Invocation& c, const std::string& name,
                   ArgumentMemory&) {
  const signature::gather_shards::Update<Arg> args(c.args);
  std::array<int64_t, kMaxGroupRanks> counts;
  const size_t n = static_cast<size_t>(g.size());
  const int64_t shard = c.integer("shard"), size = tensor::size_of(args.w.dtype);
  int64_t begin = 0;
  for (size_t r = 0; r < n; ++r) {
    counts[r] = share(args.w.size(), shard, static_cast<int64_t>(r)) * size;
    if (static_cast<int>(r) < g.rank()) begin += counts[r];
  }
  const comm::MutableBytes all = out(args.w);
  g.all_gather_v(
      name,
      all.subspan(static_cast<size_t>(begin), static_cast<size_t>(counts[static_cast<size_t>(g.rank())])),
      all, {counts.data(), n});
}

// Rows between token ranks and expert ranks, as all_offsets [n, E+1] says. There: to rank j the rows of its
// experts. Back: to rank i the rows it had sent.
template <bool kToExperts>
void exchange_rows(comm::Communicator& g, const program::Stage&, const Invocation& c, const std::string& name,
                   ArgumentMemory&) {
  const signature::rows_to_experts::Forward<Arg> args(c.args);
  std::array<int64_t, kMaxGroupRanks> send, send_at, receive, receive_at;
  const int64_t own = c.integer("experts_per_rank"), copies = c.integer("copies");
  const int64_t n = g.size(), width = args.all_offsets.dim(1);
  const int32_t* offsets = args.all_offsets.as<int32_t>();  // on the host (schedule/pass/host_waits.h)
  const int64_t row = args.x.dim(0) ? bytes_of(args.x) / args.x.dim(0) : 0;
  const auto rows = [&](int64_t source, int64_t rank) {
    const int64_t e = rank / copies * own;
    return offsets[source * width + e + own] - offsets[source * width + e];
  };
  int64_t arrived = 0, sent = 0;
  for (int64_t j = 0; j < n; ++j) {
    const size_t i = static_cast<size_t>(j);
    const int64_t out_rows = kToExperts ? rows(g.rank(), j) : rows(j, g.rank());
    const int64_t in_rows = kToExperts ? rows(j, g.rank()) : rows(g.rank(), j);
    // Copies of an expert rank get the same rows; what goes back to token ranks lies source after source.
    send[i] = out_rows * row;
    send_at[i] = kToExperts ? (offsets[g.rank() * width + j / copies * own]) * row : sent;
    receive[i] = in_rows * row;
    receive_at[i] = arrived;
    sent += send[i];
    arrived += receive[i];
  }
  if (arrived > bytes_of(args.y))
    base::fail("{} rows arrive, the budget is {}: a larger moe.token_budget would fit",
               arrived / std::max<int64_t>(row, 1), args.y.dim(0));
  const size_t m = static_cast<size_t>(n);
  g.all_to_all_v(name, in(args.x), {{send.data(), m}, {send_at.data(), m}}, out(args.y),
                 {{receive.data(), m}, {receive_at.data(), m}});
}

// A meeting that failed says so in `met` itself, where it is enqueued.
void meet(comm::Communicator& g, const program::Stage&, const Invocation& c, const std::string& name,
          ArgumentMemory& memory) {
  const comm::MutableBytes met = out(c.args.back());
  if (g.meeting() == program::Meeting::OnHost) {
    g.barrier(name);
    memory.fill(met.data(), 1, 1);
  } else {
    g.barrier(name, met);
  }
}

// Messages of one direction over one cut of the model (part) arrive in the order they were sent.
int tag_of(const program::Stage& stage) {
  return stage.part * 2 + (stage.phase == program::Phase::Forward ? 0 : 1);
}

int neighbour(const comm::Communicator& g, program::Peer peer) {
  return (g.rank() + (peer == program::Peer::Next ? 1 : g.size() - 1)) % g.size();
}

void send(comm::Communicator& g, const program::Stage& stage, const Invocation& c, const std::string& name,
          ArgumentMemory&) {
  g.send(name, neighbour(g, stage.peer), tag_of(stage), in(signature::send::Forward(c.args).x));
}

void receive(comm::Communicator& g, const program::Stage& stage, const Invocation& c, const std::string& name,
             ArgumentMemory&) {
  g.receive(name, neighbour(g, stage.peer), tag_of(stage), out(signature::receive::Forward(c.args).y));
}

void require(const program::Stage& stage, const char* what, int64_t got, int64_t needed) {
  if (got != needed)
    base::fail_with(base::ExitCode::Internal, "{}: {} is {}, needed {}", stage_name(stage), what, got,
                    needed);
}

// nullptr: there is none. The arguments fit the contract; what the group asks of them is checked here.
Collective find_collective(const program::Stage& stage, const Invocation& c, const comm::Communicator& g) {
  if (g.size() > kMaxGroupRanks)
    base::fail_with(base::ExitCode::Internal, "{}: the group has {} ranks, needed at most {}",
                    stage_name(stage), g.size(), kMaxGroupRanks);
  switch (kernel_of(stage.op)) {
    case KernelKind::all_gather: {
      const signature::all_gather::Forward<Arg> args(c.args);
      require(stage, "bytes gathered", bytes_of(args.y), bytes_of(args.x) * g.size());
      return all_gather;
    }
    case KernelKind::reduce_scatter: {
      const signature::reduce_scatter::Forward<Arg> args(c.args);
      require(stage, "bytes to reduce", bytes_of(args.x), bytes_of(args.y) * g.size());
      return reduce_scatter;
    }
    case KernelKind::all_reduce:
      return all_reduce;
    case KernelKind::all_to_all: {
      const signature::all_to_all::Forward<Arg> args(c.args);
      require(stage, "rest of the bytes exchanged", bytes_of(args.x) % g.size(), 0);
      return all_to_all;
    }
    case KernelKind::ring_shift:
      return ring_shift;
    case KernelKind::reduce_shards:
      return reduce_shards;
    case KernelKind::gather_shards:
      return gather_shards;
    case KernelKind::rows_to_experts:
    case KernelKind::rows_to_tokens: {
      const signature::rows_to_experts::Forward<Arg> args(c.args);
      require(stage, "number of plans", args.all_offsets.dim(0), g.size());
      require(stage, "number of experts", args.all_offsets.dim(1) - 1,
              g.size() / c.integer("copies") * c.integer("experts_per_rank"));
      return kernel_of(stage.op) == KernelKind::rows_to_experts ? exchange_rows<true> : exchange_rows<false>;
    }
    case KernelKind::meet:
      return meet;
    case KernelKind::send:
      return send;
    case KernelKind::receive:
      return receive;
    default:
      return nullptr;
  }
}

}  // namespace

void HostMemory::fill(std::byte* at, int byte, int64_t bytes) {
  std::memset(at, byte, static_cast<size_t>(bytes));
}

std::string group_lane(const program::Program& program, const program::Stage& stage) {
  // Messages are told apart by their tags, and the two ends of one lie on different lanes.
  if (class_of(stage.op) == program::OpClass::Transfer) return kMessageLane;
  const std::string& lane = program.lanes[static_cast<size_t>(stage.lane)].name;
  return kernel_of(stage.op) == KernelKind::meet ? kWindowLane + lane : lane;
}

kernels::Windows windows_of(const program::Stage& stage, const FindGroup& groups) {
  kernels::Windows out;
  if (groups.windows) out = groups.windows(stage.group);
  if (out.size() == 0)
    base::fail_with(base::ExitCode::Internal, "{}: this run has no windows of group {}", stage_name(stage),
                    name_of(stage.group));
  return out;
}

BoundCollective bind_collective(const program::Program& program, const program::Stage& stage,
                                const Invocation& call, const FindGroup& groups) {
  BoundCollective out;
  out.name = stage_name(stage);
  if (groups) out.group = groups(stage.group, group_lane(program, stage));
  if (!out.group)
    base::fail_with(base::ExitCode::Internal, "{}: this run has no group {}", out.name, name_of(stage.group));
  try {
    kernels::check_contract(kernel_of(stage.op), stage.phase, call);
  } catch (const base::Error& e) {
    throw base::Error(e.code(), fmt::format("{}: {}", out.name, e.what()));
  }
  out.run = find_collective(stage, call, *out.group);
  if (!out.run)
    base::fail_with(base::ExitCode::Internal, "{}: there is no collective {}", out.name,
                    name_of(kernel_of(stage.op)));
  return out;
}

}  // namespace pleat::interpret
