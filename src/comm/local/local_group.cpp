#include "comm/local/local_group.h"

#include <algorithm>
#include <exception>

#include "base/error.h"

namespace pleat::comm::local {

Group::Group(std::string group_name, std::vector<int> world_ranks, Buffers where)
    : name(std::move(group_name)),
      ranks(std::move(world_ranks)),
      buffers(where),
      enter(static_cast<int>(ranks.size())),
      leave(static_cast<int>(ranks.size())),
      calls(ranks.size()),
      signatures(ranks.size()),
      mailboxes(ranks.size()),
      open(ranks.size()) {}

void Group::call_off() {
  enter.call_off();
  for (Mailbox& mailbox : mailboxes) mailbox.call_off();
}

GroupEnd::GroupEnd(std::shared_ptr<Group> group, int rank, RankFlight& flight, const Options& options,
                   WorldOfEnd world)
    : Communicator(group->name, group->ranks, rank, flight, options.inject),
      group_(std::move(group)),
      compare_stage_(options.check ? CompareStage::Yes : CompareStage::No),
      world_(std::move(world)),
      mover_(make_mover(group_->buffers)) {}

GroupEnd::~GroupEnd() { world_.closed(); }

void GroupEnd::turned_away(const Call& call) const {
  world_.fail_aborted(fmt::format("rank {} in group '{}', {} #{} of stage '{}'", world_ranks()[rank()],
                                  name(), name_of(call.operation), call.sequence, call.stage));
  std::abort();  // not reached: it throws
}

void GroupEnd::execute(const Call& call) {
  if (call.operation >= Operation::Send) return message(call);
  collective(call);
}

void GroupEnd::collective(const Call& call) {
  const auto me = static_cast<size_t>(rank());
  group_->calls[me] = &call;
  group_->signatures[me] = signature_of(call);
  if (!group_->enter.arrive_and_wait()) turned_away(call);
  std::string difference;
  std::exception_ptr failure;
  try {
    std::vector<const Signature*> signatures;
    for (const Signature& s : group_->signatures) signatures.push_back(&s);
    difference = first_difference(signatures, world_ranks(), name(), compare_stage_);
    if (difference.empty()) {
      work(call);
      mover_->finish();
    }
  } catch (...) {  // no memory, or the device failed: the others must still get out
    failure = std::current_exception();
  }
  group_->leave.arrive_and_wait();
  if (failure) std::rethrow_exception(failure);
  if (!difference.empty()) base::fail("{}", difference);
}

void GroupEnd::work(const Call& call) {
  const std::vector<const Call*>& calls = group_->calls;
  const int64_t n = size(), me = rank();
  std::vector<const std::byte*> ins;
  std::vector<std::byte*> outs;
  const auto copy = [&](std::byte* to, const std::byte* from, int64_t bytes) {
    // In place, a part may already be where it belongs.
    if (bytes > 0 && to != from) mover_->copy(to, from, bytes);
  };
  switch (call.operation) {
    case Operation::AllReduce: {
      // Each rank reduces one slice and writes it to every rank: nobody else reads or writes that slice.
      const int64_t element = tensor::size_of(call.dtype);
      const auto count = static_cast<int64_t>(call.in.size()) / element;
      const int64_t first = count / n * me + std::min(me, count % n);
      const int64_t mine = count / n + (me < count % n ? 1 : 0);
      for (const Call* c : calls) {
        ins.push_back(c->in.data() + first * element);
        outs.push_back(c->out.data() + first * element);
      }
      return mover_->reduce(ins, outs, mine, call.dtype, call.reduce);
    }
    case Operation::ReduceScatter: {
      const auto part = static_cast<size_t>(me);
      for (const Call* c : calls) ins.push_back(c->in.data() + call.send.offsets[part]);
      outs.push_back(call.out.data());
      return mover_->reduce(ins, outs, call.send.counts[part] / tensor::size_of(call.dtype), call.dtype,
                            call.reduce);
    }
    case Operation::AllGather:
      for (size_t r = 0; r < calls.size(); ++r)
        copy(call.out.data() + call.send.offsets[r], calls[r]->in.data(), call.send.counts[r]);
      return;
    case Operation::AllToAll:
      for (size_t r = 0; r < calls.size(); ++r)
        copy(call.out.data() + call.receive.offsets[r],
             calls[r]->in.data() + calls[r]->send.offsets[static_cast<size_t>(me)], call.receive.counts[r]);
      return;
    case Operation::Broadcast:
      return copy(call.out.data(), calls[static_cast<size_t>(call.peer)]->in.data(),
                  static_cast<int64_t>(call.out.size()));
    case Operation::Shift:
      return copy(call.out.data(), calls[static_cast<size_t>(call.from)]->in.data(),
                  static_cast<int64_t>(call.out.size()));
    case Operation::Barrier:
      return;
    case Operation::Send:
    case Operation::Receive:
    case Operation::SendReceive:
      break;
  }
  PLEAT_CHECK(false, "{} is no collective", name_of(call.operation));
}

void GroupEnd::message(const Call& call) {
  const bool sends = call.operation != Operation::Receive, receives = call.operation != Operation::Send;
  const int from = call.operation == Operation::SendReceive ? call.from : call.peer;
  Message out;
  out.from = rank();
  out.tag = call.tag;
  out.data = call.in;
  out.stage = call.stage;
  std::string fault;
  bool ok = true;
  Mailbox& theirs = group_->mailboxes[static_cast<size_t>(call.peer)];
  if (sends) theirs.post(out);
  std::exception_ptr failure;
  try {
    if (receives)
      ok = group_->mailboxes[static_cast<size_t>(rank())].receive(from, call.tag, call.out, call.stage,
                                                                  *mover_, fault);
  } catch (...) {
    failure = std::current_exception();
  }
  // Also when the receive failed: the message must not outlive this frame.
  if (sends) ok = theirs.wait_taken(out) && ok;
  if (failure) std::rethrow_exception(failure);
  if (!ok) turned_away(call);
  if (fault.empty()) fault = out.fault;
  if (!fault.empty())
    base::fail("group '{}', {} on rank {} for stage '{}' (partner: rank {}): {}", name(),
               name_of(call.operation), world_ranks()[static_cast<size_t>(rank())], call.stage,
               world_ranks()[static_cast<size_t>(receives ? from : call.peer)], fault);
}

}  // namespace pleat::comm::local
