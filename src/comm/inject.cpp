#include "comm/inject.h"

#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>

#include "base/error.h"
#include "comm/flight.h"

namespace pleat::comm {
namespace {

constexpr std::array<std::string_view, 6> kKinds = {"throw", "kill", "stop", "sleep", "skip", "size"};
std::string_view name_of(Fault::Kind kind) { return kKinds[static_cast<size_t>(kind)]; }

// Counts of a call with one part made smaller. They live until this thread's next such call.
std::span<const int64_t> with_less(std::span<const int64_t> counts, size_t part, int64_t less) {
  thread_local std::vector<int64_t> changed;
  changed.assign(counts.begin(), counts.end());
  changed[part] -= less;
  return changed;
}

// False when the call has nothing that could be less.
bool make_smaller(Call& call, int member) {
  const int64_t element = tensor::size_of(call.dtype);
  const auto cut = [](auto& data, int64_t less) {
    data = data.first(data.size() - static_cast<size_t>(less));
  };
  const auto me = static_cast<size_t>(member);
  switch (call.operation) {
    case Operation::Barrier:
      return false;
    case Operation::ReduceScatter:
      if (call.send.counts.back() < element) return false;
      if (me + 1 == call.send.counts.size()) cut(call.out, element);
      cut(call.in, element);
      call.send.counts = with_less(call.send.counts, call.send.counts.size() - 1, element);
      return true;
    case Operation::AllGather:
      if (call.in.empty()) return false;
      call.send.counts = with_less(call.send.counts, me, 1);
      cut(call.in, 1);
      return true;
    case Operation::AllToAll:
      for (size_t r = 0; r < call.send.counts.size(); ++r) {
        if (r == me || call.send.counts[r] == 0) continue;
        call.send.counts = with_less(call.send.counts, r, 1);
        return true;
      }
      return false;
    case Operation::AllReduce:
    case Operation::Broadcast:
    case Operation::Send:
    case Operation::Receive:
    case Operation::SendReceive:
    case Operation::Shift:
      break;
  }
  const int64_t less = call.operation == Operation::AllReduce ? element : 1;
  const bool can =
      static_cast<int64_t>(call.in.size()) >= less || static_cast<int64_t>(call.out.size()) >= less;
  if (static_cast<int64_t>(call.in.size()) >= less) cut(call.in, less);
  if (static_cast<int64_t>(call.out.size()) >= less) cut(call.out, less);
  return can;
}

}  // namespace

Fault parse_fault(const std::string& text) {
  const auto wrong = [&] {
    base::fail(
        "fault '{}'; needed KIND:RANK:STAGE[:MATCH] with KIND one of throw, kill, stop, sleep, skip, size",
        text);
  };
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (c == ':')
      words.emplace_back();
    else
      words.back() += c;
  }
  const auto number = [&](const std::string& word) -> int64_t {
    if (word.empty() || word.size() > 9 || word.find_first_not_of("0123456789") != std::string::npos) wrong();
    return std::stoll(word);
  };
  if (words.size() < 3 || words.size() > 4 || words[2].empty()) wrong();
  Fault fault;
  const auto kind = std::find(kKinds.begin(), kKinds.end(), words[0]);
  if (kind == kKinds.end()) wrong();
  fault.kind = static_cast<Fault::Kind>(kind - kKinds.begin());
  fault.rank = static_cast<int>(number(words[1]));
  fault.stage = words[2];
  if (words.size() == 4) fault.at_match = number(words[3]);
  return fault;
}

Inject inject(const Fault& fault) {
  const auto num_matches = std::make_shared<std::atomic<int64_t>>(0);
  return [fault, num_matches](int rank, std::string_view group, int member, Call& call) {
    if (rank != fault.rank || call.stage.find(fault.stage) == std::string_view::npos) return true;
    Call smaller = call;
    if (fault.kind == Fault::Kind::Size && !make_smaller(smaller, member)) return true;
    if (++*num_matches != fault.at_match) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    fmt::print(stderr, "fault {} on rank {} in group '{}' {} stage '{}' at {}\n", name_of(fault.kind), rank,
               group, name_of(call.operation), call.stage, steady_ns());
    std::fflush(stderr);
    switch (fault.kind) {
      case Fault::Kind::Throw:
        base::fail_with(base::ExitCode::Retry, "fault on purpose before {} of stage '{}' in group '{}'",
                        name_of(call.operation), call.stage, group);
      case Fault::Kind::Kill:
        raise(SIGKILL);
        break;
      case Fault::Kind::Stop:
        raise(SIGSTOP);
        break;
      case Fault::Kind::Sleep:
        for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
      case Fault::Kind::Skip:
        return false;
      case Fault::Kind::Size:
        call = smaller;
        break;
    }
    return true;
  };
}

}  // namespace pleat::comm
