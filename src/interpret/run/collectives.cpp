#include "interpret/run/collectives.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"

namespace pleat::interpret {

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
  g.all_gather(name, in(c[0]), out(c[1]));
}

void reduce_scatter(comm::Communicator& g, const program::Stage&, const Invocation& c,
                    const std::string& name, ArgumentMemory&) {
  g.reduce_scatter(name, in(c[0]), out(c[1]), c[0].dtype, comm::Reduce::Sum);
}

void all_reduce(comm::Communicator& g, const program::Stage&, const Invocation& c, const std::string& name,
                ArgumentMemory&) {
  bool maximum = false;
  for (const program::Attr& a : *c.attrs) maximum |= a.key == "max" && a.number != 0;
  g.all_reduce(name, in(c[0]), out(c[0]), c[0].dtype, maximum ? comm::Reduce::Max : comm::Reduce::Sum);
}

void all_to_all(comm::Communicator& g, const program::Stage&, const Invocation& c, const std::string& name,
                ArgumentMemory&) {
  std::array<int64_t, kMaxGroupRanks> counts, offsets;
  const size_t n = static_cast<size_t>(g.size());
  const int64_t part = bytes_of(c[0]) / g.size();
  for (size_t i = 0; i < n; ++i) counts[i] = part, offsets[i] = static_cast<int64_t>(i) * part;
  const comm::Parts parts{{counts.data(), n}, {offsets.data(), n}};
  g.all_to_all_v(name, in(c[0]), parts, out(c[1]), parts);
}

void ring_shift(comm::Communicator& g, const program::Stage&, const Invocation& c, const std::string& name,
                ArgumentMemory&) {
  g.shift(name, in(c[0]), out(c[1]));
}

// Elements of the share of rank r of n elements cut into shares of `shard`.
int64_t share(int64_t n, int64_t shard, int64_t r) { return std::clamp<int64_t>(n - r * shard, 0, shard); }

void reduce_shards(comm::Communicator& g, const program::Stage&, const Invocation& c, const std::string& name,
                   ArgumentMemory& memory) {
  std::array<int64_t, kMaxGroupRanks> counts;
  const size_t n = static_cast<size_t>(g.size());
  const int64_t shard = c.integer("shard");
  for (size_t r = 0; r < n; ++r) counts[r] = share(c[0].size(), shard, static_cast<int64_t>(r));
  const int64_t mine = counts[static_cast<size_t>(g.rank())], size = tensor::size_of(c[0].dtype);
  const comm::MutableBytes to = out(c[1]);
  g.reduce_scatter_v(name, in(c[0]), to.first(static_cast<size_t>(mine * size)), {counts.data(), n},
                     c[0].dtype, comm::Reduce::Sum);
  memory.zero(to.data() + mine * size, static_cast<int64_t>(to.size()) - mine * size);
}

void gather_shards(comm::Communicator& g, const program::Stage&, const Invocation& c, const std::string& name,
                   ArgumentMemory&) {
  std::array<int64_t, kMaxGroupRanks> counts;
  const size_t n = static_cast<size_t>(g.size());
  const int64_t shard = c.integer("shard"), size = tensor::size_of(c[0].dtype);
  int64_t begin = 0;
  for (size_t r = 0; r < n; ++r) {
    counts[r] = share(c[0].size(), shard, static_cast<int64_t>(r)) * size;
    if (static_cast<int>(r) < g.rank()) begin += counts[r];
  }
  const comm::MutableBytes all = out(c[0]);
  g.all_gather_v(
      name,
      all.subspan(static_cast<size_t>(begin), static_cast<size_t>(counts[static_cast<size_t>(g.rank())])),
      all, {counts.data(), n});
}

// Rows between token ranks and expert ranks, as all_offsets [n, E+1] says. There: to rank j the rows of its
// experts. Back: to rank i the rows it had sent.
template <bool kToExperts>
void exchange_rows(comm::Communicator& g, const program::Stage&, const Invocation& c, const std::string& name,
                   ArgumentMemory& memory) {
  std::array<int64_t, kMaxGroupRanks> send, send_at, receive, receive_at;
  const int64_t own = c.integer("experts_per_rank"), copies = c.integer("copies");
  const int64_t n = g.size(), width = c[1].dim(1);
  const int32_t* offsets = memory.integers(c[1]);
  const int64_t row = c[0].dim(0) ? bytes_of(c[0]) / c[0].dim(0) : 0;
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
  if (arrived > bytes_of(c[2]))
    base::fail("{} rows arrive, the budget is {}: a larger moe.token_budget would fit",
               arrived / std::max<int64_t>(row, 1), c[2].dim(0));
  const size_t m = static_cast<size_t>(n);
  g.all_to_all_v(name, in(c[0]), {{send.data(), m}, {send_at.data(), m}}, out(c[2]),
                 {{receive.data(), m}, {receive_at.data(), m}});
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
  g.send(name, neighbour(g, stage.peer), tag_of(stage), in(c[0]));
}

void receive(comm::Communicator& g, const program::Stage& stage, const Invocation& c, const std::string& name,
             ArgumentMemory&) {
  g.receive(name, neighbour(g, stage.peer), tag_of(stage), out(c[0]));
}

void require(bool ok, const program::Stage& stage, const char* what, int64_t got, int64_t needed) {
  if (!ok)
    base::fail_with(base::ExitCode::Internal, "{}: {} is {}, needed {}", stage_name(stage), what, got,
                    needed);
}

// nullptr: there is none.
Collective find_collective(const program::Stage& stage, const Invocation& c, const comm::Communicator& g) {
  require(g.size() <= kMaxGroupRanks, stage, "group size", g.size(), kMaxGroupRanks);
  switch (kernel_of(stage.op)) {
    case KernelKind::all_gather:
      require(bytes_of(c[1]) == bytes_of(c[0]) * g.size(), stage, "bytes gathered", bytes_of(c[1]),
              bytes_of(c[0]) * g.size());
      return all_gather;
    case KernelKind::reduce_scatter:
      require(bytes_of(c[0]) == bytes_of(c[1]) * g.size(), stage, "bytes to reduce", bytes_of(c[0]),
              bytes_of(c[1]) * g.size());
      return reduce_scatter;
    case KernelKind::all_reduce:
      return all_reduce;
    case KernelKind::all_to_all:
      require(bytes_of(c[0]) == bytes_of(c[1]) && bytes_of(c[0]) % g.size() == 0, stage, "bytes exchanged",
              bytes_of(c[1]), bytes_of(c[0]));
      return all_to_all;
    case KernelKind::ring_shift:
      require(bytes_of(c[0]) == bytes_of(c[1]), stage, "bytes received", bytes_of(c[1]), bytes_of(c[0]));
      return ring_shift;
    case KernelKind::reduce_shards:
      require(c[1].size() == c.integer("shard"), stage, "share", c[1].size(), c.integer("shard"));
      return reduce_shards;
    case KernelKind::gather_shards:
      return gather_shards;
    case KernelKind::rows_to_experts:
      return exchange_rows<true>;
    case KernelKind::rows_to_tokens:
      return exchange_rows<false>;
    case KernelKind::send:
      return send;
    case KernelKind::receive:
      return receive;
    default:
      return nullptr;
  }
}

}  // namespace

void HostMemory::zero(std::byte* at, int64_t bytes) { std::memset(at, 0, static_cast<size_t>(bytes)); }
const int32_t* HostMemory::integers(const Arg& arg) { return arg.as<int32_t>(); }

BoundCollective bind_collective(const program::Program& program, const program::Stage& stage,
                                const Invocation& call, const FindGroup& groups) {
  BoundCollective out;
  out.name = stage_name(stage);
  // Messages are told apart by their tags, and the two ends of one lie on different lanes.
  const bool message = class_of(stage.op) == program::OpClass::Transfer;
  if (groups)
    out.group =
        groups(stage.group, message ? "messages" : program.lanes[static_cast<size_t>(stage.lane)].name);
  if (!out.group)
    base::fail_with(base::ExitCode::Internal, "{}: this run has no group {}", out.name, name_of(stage.group));
  out.run = find_collective(stage, call, *out.group);
  if (!out.run)
    base::fail_with(base::ExitCode::Internal, "{}: there is no collective {}", out.name,
                    name_of(kernel_of(stage.op)));
  return out;
}

}  // namespace pleat::interpret
