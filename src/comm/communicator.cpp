#include "comm/communicator.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"

namespace pleat::comm {
namespace {

bool overlap(Bytes a, Bytes b) {
  const auto begin = [](Bytes s) { return reinterpret_cast<uintptr_t>(s.data()); };
  return !a.empty() && !b.empty() && begin(a) < begin(b) + b.size() && begin(b) < begin(a) + a.size();
}

std::vector<int64_t> offsets_of(std::span<const int64_t> counts) {
  std::vector<int64_t> offsets(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), int64_t{0});
  return offsets;
}

void copy_text(char* to, size_t room, std::string_view text) {
  std::memcpy(to, text.data(), std::min(text.size(), room - 1));
}

}  // namespace

uint64_t group_hash(std::string_view name, std::span<const int> world_ranks) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  const auto add = [&](uint64_t word) { hash = (hash ^ word) * 0x100000001b3ULL; };
  for (const char c : name) add(static_cast<unsigned char>(c));
  for (const int rank : world_ranks) add(0x100 + static_cast<uint64_t>(rank));
  return hash;
}

Communicator::Communicator(std::string name, std::vector<int> world_ranks, int rank, RankFlight& flight,
                           Inject inject)
    : name_(std::move(name)),
      world_ranks_(std::move(world_ranks)),
      rank_(rank),
      group_hash_(group_hash(name_, world_ranks_)),
      flight_(flight),
      inject_(std::move(inject)) {}

void Communicator::abort(const std::string& why) { flight_.fail(why); }

int Communicator::captured() {
  base::fail_with(base::ExitCode::Internal, "calls of group '{}' block: no graph can hold them", name_);
}
void Communicator::launched(int) { captured(); }

std::vector<std::unique_ptr<Communicator>> Endpoint::groups(std::span<const WantedGroup> wanted,
                                                            Buffers buffers) {
  std::vector<std::unique_ptr<Communicator>> made;
  for (const WantedGroup& w : wanted) made.push_back(group(w.name, w.ranks, buffers, w.stream));
  return made;
}

uint64_t Communicator::next_sequence(Operation operation) {
  return (operation >= Operation::Send ? next_message_ : next_collective_)++;
}

void Communicator::record_and_execute(Call& call) {
  if (inject_ && !inject_(world_ranks_[static_cast<size_t>(rank_)], name_, rank_, call)) return;
  call.sequence = next_sequence(call.operation);
  FlightEntry entry;
  entry.group_hash = group_hash_;
  entry.sequence = call.sequence;
  entry.shape_hash = shape_hash(call);
  entry.bytes = static_cast<int64_t>(std::max(call.in.size(), call.out.size()));
  if (call.peer >= 0) entry.peer = world_ranks_[call.peer];
  if (call.from >= 0) entry.from = world_ranks_[call.from];
  entry.tag = call.tag;
  entry.operation = call.operation;
  entry.dtype = call.dtype;
  entry.reduce = call.reduce;
  copy_text(entry.group, sizeof entry.group, name_);
  copy_text(entry.stage, sizeof entry.stage, call.stage);
  record(call, entry);
}

void Communicator::record(const Call& call, const FlightEntry& entry) {
  const int slot = flight_.begin(entry);
  try {
    execute(call);
  } catch (...) {
    flight_.end(slot, FlightState::Failed);
    throw;
  }
  flight_.end(slot, FlightState::Done);
}

namespace {

// "group 'dp', all_reduce for stage 'x'"
std::string here(const Communicator& c, Operation operation, std::string_view stage) {
  return fmt::format("group '{}', {} for stage '{}'", c.name(), name_of(operation), stage);
}

void require_reducible(const Communicator& c, Operation operation, std::string_view stage, Bytes in,
                       tensor::Dtype dtype) {
  if (dtype == tensor::Dtype::U8)
    base::fail("{}: u8 cannot be reduced, needed f32, f64, bf16, i32 or i64", here(c, operation, stage));
  const auto element = static_cast<uint64_t>(tensor::size_of(dtype));
  if (in.size() % element != 0 || reinterpret_cast<uintptr_t>(in.data()) % element != 0)
    base::fail("{}: {} bytes at {} are no array of {}", here(c, operation, stage), in.size(),
               static_cast<const void*>(in.data()), tensor::name_of(dtype));
}

// Counts are one per rank, not negative, and add up to `whole`; offsets where given stay inside.
void require_counts(const Communicator& c, Operation operation, std::string_view stage,
                    std::span<const int64_t> counts, int64_t whole) {
  if (counts.size() != static_cast<size_t>(c.size()))
    base::fail("{}: {} counts for {} ranks", here(c, operation, stage), counts.size(), c.size());
  int64_t sum = 0;
  for (const int64_t count : counts) {
    if (count < 0 || count > whole - sum)
      base::fail("{}: a count of {} after {} of {} bytes", here(c, operation, stage), count, sum, whole);
    sum += count;
  }
  if (sum != whole)
    base::fail("{}: the parts add up to {} bytes, the whole has {}", here(c, operation, stage), sum, whole);
}

void require_parts(const Communicator& c, std::string_view stage, const char* what, Parts parts,
                   size_t whole) {
  const std::string at = here(c, Operation::AllToAll, stage);
  const auto n = static_cast<size_t>(c.size());
  if (parts.counts.size() != n || parts.offsets.size() != n)
    base::fail("{}: {} {} counts and {} offsets for {} ranks", at, parts.counts.size(), what,
               parts.offsets.size(), n);
  for (size_t r = 0; r < n; ++r) {
    const int64_t count = parts.counts[r], offset = parts.offsets[r];
    if (count < 0 || offset < 0 || count > static_cast<int64_t>(whole) ||
        offset > static_cast<int64_t>(whole) - count)
      base::fail("{}: {} part {} is {} bytes at {}, outside of {} bytes", at, what, r, count, offset, whole);
  }
}

void require_rank(const Communicator& c, Operation operation, std::string_view stage, const char* what,
                  int rank) {
  if (rank < 0 || rank >= c.size())
    base::fail("{}: {} {} is no rank of this group of {}", here(c, operation, stage), what, rank, c.size());
}

void require_tag(const Communicator& c, Operation operation, std::string_view stage, int tag) {
  if (tag < 0 || tag > Communicator::kMaxTag)
    base::fail("{}: tag {}; needed 0 to {}", here(c, operation, stage), tag, +Communicator::kMaxTag);
}

// `allowed` is the one place where the second buffer may lie inside the first.
void require_apart(const Communicator& c, Operation operation, std::string_view stage, Bytes whole,
                   Bytes part, const std::byte* allowed) {
  if (part.data() != allowed && overlap(whole, part))
    base::fail("{}: the buffers overlap in a way this operation does not allow", here(c, operation, stage));
}

}  // namespace

void Communicator::all_reduce(std::string_view stage, Bytes in, MutableBytes out, tensor::Dtype dtype,
                              Reduce reduce) {
  constexpr auto kOperation = Operation::AllReduce;
  require_reducible(*this, kOperation, stage, in, dtype);
  require_reducible(*this, kOperation, stage, out, dtype);
  if (in.size() != out.size())
    base::fail("{}: {} bytes in, {} bytes out", here(*this, kOperation, stage), in.size(), out.size());
  require_apart(*this, kOperation, stage, in, out, in.data());
  Call call{.operation = kOperation, .stage = stage, .in = in, .out = out, .dtype = dtype, .reduce = reduce};
  record_and_execute(call);
}

void Communicator::reduce_scatter(std::string_view stage, Bytes in, MutableBytes out, tensor::Dtype dtype,
                                  Reduce reduce) {
  const std::vector<int64_t> bytes(static_cast<size_t>(size()), static_cast<int64_t>(out.size()));
  reduce_scatter_parts(stage, in, out, bytes, dtype, reduce);
}

void Communicator::reduce_scatter_v(std::string_view stage, Bytes in, MutableBytes out,
                                    std::span<const int64_t> counts, tensor::Dtype dtype, Reduce reduce) {
  std::vector<int64_t> bytes(counts.begin(), counts.end());
  const int64_t element = tensor::size_of(dtype);
  for (int64_t& count : bytes) {
    // Too large to be true is left as it is: it is refused as such below.
    if (count <= INT64_MAX / element) count *= element;
  }
  reduce_scatter_parts(stage, in, out, bytes, dtype, reduce);
}

void Communicator::reduce_scatter_parts(std::string_view stage, Bytes in, MutableBytes out,
                                        std::span<const int64_t> bytes, tensor::Dtype dtype, Reduce reduce) {
  constexpr auto kOperation = Operation::ReduceScatter;
  require_reducible(*this, kOperation, stage, in, dtype);
  require_reducible(*this, kOperation, stage, out, dtype);
  require_counts(*this, kOperation, stage, bytes, static_cast<int64_t>(in.size()));
  const auto me = static_cast<size_t>(rank_);
  if (bytes[me] != static_cast<int64_t>(out.size()))
    base::fail("{}: my part has {} bytes, out has {}", here(*this, kOperation, stage), bytes[me], out.size());
  const std::vector<int64_t> offsets = offsets_of(bytes);
  require_apart(*this, kOperation, stage, in, out, in.data() + offsets[me]);
  Call call{.operation = kOperation, .stage = stage, .in = in, .out = out, .dtype = dtype, .reduce = reduce};
  call.send = {bytes, offsets};
  record_and_execute(call);
}

void Communicator::all_gather(std::string_view stage, Bytes in, MutableBytes out) {
  const std::vector<int64_t> bytes(static_cast<size_t>(size()), static_cast<int64_t>(in.size()));
  all_gather_parts(stage, in, out, bytes);
}

void Communicator::all_gather_v(std::string_view stage, Bytes in, MutableBytes out,
                                std::span<const int64_t> counts) {
  all_gather_parts(stage, in, out, counts);
}

void Communicator::all_gather_parts(std::string_view stage, Bytes in, MutableBytes out,
                                    std::span<const int64_t> bytes) {
  constexpr auto kOperation = Operation::AllGather;
  require_counts(*this, kOperation, stage, bytes, static_cast<int64_t>(out.size()));
  const auto me = static_cast<size_t>(rank_);
  if (bytes[me] != static_cast<int64_t>(in.size()))
    base::fail("{}: my part has {} bytes, in has {}", here(*this, kOperation, stage), bytes[me], in.size());
  const std::vector<int64_t> offsets = offsets_of(bytes);
  require_apart(*this, kOperation, stage, out, in, out.data() + offsets[me]);
  Call call{.operation = kOperation, .stage = stage, .in = in, .out = out};
  call.send = {bytes, offsets};
  record_and_execute(call);
}

void Communicator::all_to_all_v(std::string_view stage, Bytes in, Parts send, MutableBytes out,
                                Parts receive) {
  require_parts(*this, stage, "send", send, in.size());
  require_parts(*this, stage, "receive", receive, out.size());
  require_apart(*this, Operation::AllToAll, stage, in, out, nullptr);
  Call call{.operation = Operation::AllToAll, .stage = stage, .in = in, .out = out};
  call.send = send;
  call.receive = receive;
  record_and_execute(call);
}

void Communicator::broadcast(std::string_view stage, MutableBytes data, int root) {
  require_rank(*this, Operation::Broadcast, stage, "root", root);
  Call call{.operation = Operation::Broadcast, .stage = stage, .in = data, .out = data};
  call.peer = root;
  record_and_execute(call);
}

void Communicator::barrier(std::string_view stage, MutableBytes met) {
  Call call{.operation = Operation::Barrier, .stage = stage, .out = met};
  record_and_execute(call);
}

void Communicator::shift(std::string_view stage, Bytes in, MutableBytes out) {
  constexpr auto kOperation = Operation::Shift;
  if (in.size() != out.size())
    base::fail("{}: {} bytes in, {} bytes out", here(*this, kOperation, stage), in.size(), out.size());
  require_apart(*this, kOperation, stage, in, out, nullptr);
  Call call{.operation = kOperation, .stage = stage, .in = in, .out = out};
  call.peer = (rank_ + 1) % size();
  call.from = (rank_ + size() - 1) % size();
  record_and_execute(call);
}

void Communicator::send(std::string_view stage, int to, int tag, Bytes data) {
  require_rank(*this, Operation::Send, stage, "receiver", to);
  if (to == rank_) base::fail("{}: a rank cannot send to itself", here(*this, Operation::Send, stage));
  require_tag(*this, Operation::Send, stage, tag);
  Call call{.operation = Operation::Send, .stage = stage, .in = data};
  call.peer = to;
  call.tag = tag;
  record_and_execute(call);
}

void Communicator::receive(std::string_view stage, int from, int tag, MutableBytes data) {
  require_rank(*this, Operation::Receive, stage, "sender", from);
  if (from == rank_)
    base::fail("{}: a rank cannot receive from itself", here(*this, Operation::Receive, stage));
  require_tag(*this, Operation::Receive, stage, tag);
  Call call{.operation = Operation::Receive, .stage = stage, .out = data};
  call.peer = from;
  call.tag = tag;
  record_and_execute(call);
}

void Communicator::send_receive(std::string_view stage, int to, Bytes out_going, int from,
                                MutableBytes in_coming, int tag) {
  constexpr auto kOperation = Operation::SendReceive;
  require_rank(*this, kOperation, stage, "receiver", to);
  require_rank(*this, kOperation, stage, "sender", from);
  if ((to == rank_) != (from == rank_))
    base::fail("{}: a rank that sends to itself receives from itself", here(*this, kOperation, stage));
  require_tag(*this, kOperation, stage, tag);
  require_apart(*this, kOperation, stage, in_coming, out_going, nullptr);
  Call call{.operation = kOperation, .stage = stage, .in = out_going, .out = in_coming};
  call.peer = to;
  call.from = from;
  call.tag = tag;
  record_and_execute(call);
}

}  // namespace pleat::comm
