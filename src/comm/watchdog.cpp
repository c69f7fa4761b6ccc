#include "comm/watchdog.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>

#include "base/error.h"
#include "comm/communicator.h"

namespace pleat::comm {
namespace {

// Before every line of ours; what others say of it begins with their own.
constexpr std::string_view kSays = "pleat: ";

double seconds_since(int64_t ns) { return static_cast<double>(steady_ns() - ns) * 1e-9; }

bool is_message(const FlightEntry& e) { return e.operation >= Operation::Send; }

std::string named(const FlightEntry& e) {
  std::string text =
      fmt::format("group '{}' {} #{} stage '{}'", e.group, name_of(e.operation), e.sequence, e.stage);
  if (e.operation == Operation::Broadcast || e.operation == Operation::Receive)
    text += fmt::format(" from rank {}", e.peer);
  if (e.operation == Operation::Send) text += fmt::format(" to rank {}", e.peer);
  if (e.operation == Operation::SendReceive || e.operation == Operation::Shift)
    text += fmt::format(" to rank {}, from rank {}", e.peer, e.from);
  return text;
}

std::string where(const std::vector<FlightEntry>& entries) {
  std::string text;
  for (const FlightEntry& e : entries) {
    if (e.state != FlightState::InFlight) continue;
    text += fmt::format("{}in {}, {:.1f} s", text.empty() ? "" : "; ", named(e), seconds_since(e.started_ns));
    if (e.enqueued_ns != 0) text += fmt::format(" (enqueued {:.1f} s ago)", seconds_since(e.enqueued_ns));
  }
  if (!text.empty()) return text;
  for (const FlightEntry& e : entries) {
    if (e.state == FlightState::Failed)
      return fmt::format("failed in {}, {:.1f} s ago", named(e), seconds_since(e.ended_ns));
    if (e.state == FlightState::Done)
      return fmt::format("in no call; last was {}, {:.1f} s ago", named(e), seconds_since(e.ended_ns));
  }
  return "in no call; none made yet";
}

bool sends_to(const FlightEntry& e, int rank) {
  return (e.operation == Operation::Send || e.operation == Operation::SendReceive) && e.peer == rank;
}
bool takes_from(const FlightEntry& e, int rank) {
  return (e.operation == Operation::Receive && e.peer == rank) ||
         (e.operation == Operation::SendReceive && e.from == rank);
}

// Whether the message `waiting` of rank `waiter` is answered by what `rank` has in flight.
bool answered(const std::vector<FlightEntry>& entries, int rank, const FlightEntry& waiting, int waiter) {
  bool taken = !sends_to(waiting, rank), given = !takes_from(waiting, rank);
  for (const FlightEntry& e : entries) {
    if (e.state != FlightState::InFlight || e.group_hash != waiting.group_hash || e.tag != waiting.tag)
      continue;
    taken |= takes_from(e, waiter);
    given |= sends_to(e, waiter);
  }
  return taken && given;
}

enum class Arrival { No, Yes, OtherCall };

// Whether the owner of `entries` (world rank `rank`) has come to the call `waiting` of rank `waiter`, or to
// another one in its place.
Arrival arrival(const std::vector<FlightEntry>& entries, int rank, const FlightEntry& waiting, int waiter) {
  if (rank == waiter) return Arrival::Yes;
  if (is_message(waiting)) return answered(entries, rank, waiting, waiter) ? Arrival::Yes : Arrival::No;
  Arrival found = Arrival::No;
  for (const FlightEntry& e : entries) {
    if (e.group_hash != waiting.group_hash || is_message(e) || e.state == FlightState::Failed) continue;
    if (e.sequence == waiting.sequence) {
      const bool same = e.operation == waiting.operation && e.shape_hash == waiting.shape_hash &&
                        std::strcmp(e.stage, waiting.stage) == 0;
      return same ? Arrival::Yes : Arrival::OtherCall;
    }
    // Unless the call itself, which may still be recorded, was another one.
    if (e.sequence > waiting.sequence) found = Arrival::Yes;
  }
  return found;
}

// As the system says it: R, S, T (stopped), Z (dead, but its parent has not looked yet) ...; 0: there is none.
char state_of(int32_t process) {
  char path[32], text[512] = {};
  std::snprintf(path, sizeof path, "/proc/%d/stat", process);
  FILE* file = std::fopen(path, "r");
  if (!file) return 0;
  const size_t length = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  // The name before the state may hold anything, so its end is looked for from behind.
  const char* end = static_cast<const char*>(memrchr(text, ')', length));
  return end && end[1] == ' ' ? end[2] : '\0';
}

bool is_zombie(int32_t process) {
  const char state = state_of(process);
  return state == 'Z' || state == 'X';
}

// Whether the process of a rank that has not said goodbye is there, as far as this process can see.
bool is_there(const RankFlight& flight) {
  if (flight.state() != RankState::Running) return true;
  if ((kill(flight.process(), 0) == 0 || errno != ESRCH) && !is_zombie(flight.process())) return true;
  return flight.state() != RankState::Running;  // it may have said goodbye since
}

std::string how_gone(const RankFlight& flight) {
  return flight.process() != 0 ? fmt::format("process {} has ended", flight.process())
                               : "its connection was closed";
}

const char* state_words(const RankFlight& flight) {
  switch (flight.state()) {
    case RankState::NotStarted:
      return "not started";
    case RankState::Running:
      return "running";
    case RankState::Failed:
      return "failed";
    case RankState::Left:
      return "has ended";
  }
  return "?";
}

}  // namespace

Watchdog::Watchdog(View view, Options options) : view_(std::move(view)), options_(std::move(options)) {
  if (options_.timeout_seconds < 0)
    base::fail("the communication time-out is {} seconds, needed 0 (never) or more",
               options_.timeout_seconds);
  for (const RankFlight* flight : view_.flights)
    seen_alive_.push_back(
        view_.processes && flight != nullptr && flight->process() != 0 && is_there(*flight) ? 1 : 0);
  lost_ = std::make_unique<std::atomic<bool>[]>(view_.flights.size());
  if (options_.timeout_seconds > 0 || options_.called_off || view_.processes)
    thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::add_group(const std::string& name, std::span<const int> world_ranks) {
  const std::lock_guard lock(mutex_);
  groups_.try_emplace(group_hash(name, world_ranks), world_ranks.begin(), world_ranks.end());
}

void Watchdog::watch() {
  double timeout = options_.timeout_seconds;
  // A launcher that saw a process die gives the others little time.
  const double longest = view_.processes ? 0.02 : 0.1;
  const double tick = timeout > 0 ? std::clamp(timeout / 10, 0.001, longest) : longest;
  for (;;) {
    const int64_t before = steady_ns();
    {
      std::unique_lock lock(mutex_);
      if (wake_.wait_for(lock, std::chrono::duration<double>(tick), [this] { return stopping_; })) return;
    }
    // This thread slept that long only if all of the process did (a shell's stop key): no rank is to blame.
    if (seconds_since(before) > std::max(1.0, timeout / 2)) continued_ns_ = steady_ns();
    // Whoever is stuck in a call cannot look between steps whether it was asked to stop. It has from now on.
    if (timeout <= 0 && options_.called_off && options_.called_off()) {
      timeout = options_.stop_seconds;
      continued_ns_ = steady_ns();
    }
    std::string table = view_.processes && !ends_by_itself() ? find_lost() : "";
    if (table.empty() && timeout > 0) table = find_unended(timeout);
    if (table.empty() && timeout > 0) table = find_stall(timeout);
    if (table.empty()) continue;
    report(table);
    return;
  }
}

bool Watchdog::is_stopped(int rank) const {
  const RankFlight* flight = view_.flights[static_cast<size_t>(rank)];
  return view_.processes && flight && flight->process() != 0 && state_of(flight->process()) == 'T';
}

bool Watchdog::is_still(int rank) const { return is_stopped(rank) || (view_.silent && view_.silent(rank)); }

void Watchdog::lose(int rank) { lost_[static_cast<size_t>(rank)] = true; }

bool Watchdog::is_gone(int rank) const {
  const auto r = static_cast<size_t>(rank);
  if (lost_[r] && view_.flights[r]->state() == RankState::Running) return true;
  return seen_alive_[r] != 0 && !is_there(*view_.flights[r]);
}

std::string Watchdog::table_without(size_t rank) const {
  const std::string table = table_of_failure(static_cast<int>(rank));
  return table.empty() ? rows(std::nullopt) : table;
}

std::string Watchdog::find_lost() {
  // A rank that failed says so itself, and ends with its own code; it is given the time to.
  constexpr int64_t kOwnWordsNs = 300'000'000;
  for (size_t r = 0; r < view_.flights.size(); ++r) {
    const RankFlight* flight = view_.flights[r];
    if (flight == nullptr ||
        std::find(view_.own.begin(), view_.own.end(), static_cast<int>(r)) != view_.own.end())
      continue;
    if (flight->state() == RankState::Failed) {
      if (failed_seen_ns_ == 0) failed_seen_ns_ = steady_ns();
      if (steady_ns() - failed_seen_ns_ < kOwnWordsNs) continue;
      return fmt::format("pleat: rank {} failed: {}\n{}", r, flight->why_failed(), table_without(r));
    }
    if (is_gone(static_cast<int>(r)))
      return fmt::format("pleat: rank {} is gone ({})\n{}", r, how_gone(*flight), table_without(r));
  }
  return "";
}

// A rank that has failed ends with its own words and code, also when others have failed of the same thing; to unwind
// takes time where groups on a GPU are called off.
bool Watchdog::ends_by_itself() {
  constexpr int64_t kUnwindNs = 5'000'000'000;
  const bool failed = std::any_of(view_.own.begin(), view_.own.end(), [&](int rank) {
    return view_.flights[static_cast<size_t>(rank)]->state() == RankState::Failed;
  });
  if (!failed) return false;
  if (own_failed_seen_ns_ == 0) own_failed_seen_ns_ = steady_ns();
  return steady_ns() - own_failed_seen_ns_ < kUnwindNs;
}

std::string Watchdog::find_unended(double timeout_seconds) {
  std::vector<int> still;
  int failed = -1;
  for (const int rank : view_.own) {
    const RankState state = view_.flights[static_cast<size_t>(rank)]->state();
    if (state == RankState::Failed && failed < 0) failed = rank;
    if (state == RankState::Running || (state == RankState::Failed && view_.processes)) still.push_back(rank);
  }
  if (failed < 0 || still.empty()) return "";
  if (own_failed_seen_ns_ == 0) own_failed_seen_ns_ = steady_ns();
  if (seconds_since(std::max(own_failed_seen_ns_, continued_ns_.load())) < timeout_seconds) return "";
  return fmt::format(
      "pleat: rank {} failed: {}\npleat: stall: {:g} s later these have not ended: rank {}\n{}", failed,
      view_.flights[static_cast<size_t>(failed)]->why_failed(), timeout_seconds, fmt::join(still, ", "),
      rows(std::nullopt));
}

double Watchdog::waited(const FlightEntry& entry) const {
  return seconds_since(std::max(entry.started_ns, continued_ns_.load()));
}

std::optional<Watchdog::Stuck> Watchdog::waits_for(int rank) const {
  std::optional<Stuck> stuck;
  const std::vector<FlightEntry> missing = view_.flights[static_cast<size_t>(rank)]->entries();
  for (int waiter = 0; waiter < static_cast<int>(view_.flights.size()); ++waiter) {
    const RankFlight* flight = view_.flights[static_cast<size_t>(waiter)];
    if (waiter == rank || flight == nullptr || is_still(waiter)) continue;
    for (const FlightEntry& e : flight->entries()) {
      if (e.state != FlightState::InFlight || arrival(missing, rank, e, waiter) == Arrival::Yes) continue;
      const std::vector<int> members = members_of({waiter, e});
      if (std::find(members.begin(), members.end(), rank) == members.end()) continue;
      const auto order = [](const FlightEntry& x) { return std::pair(is_message(x), x.started_ns); };
      if (!stuck || order(e) < order(stuck->entry)) stuck = Stuck{waiter, e};
    }
  }
  return stuck;
}

std::string Watchdog::table_of_failure(int rank) const {
  if (view_.flights[static_cast<size_t>(rank)]->failed_in_call()) return rows(std::nullopt);
  const std::optional<Stuck> stuck = waits_for(rank);
  if (!stuck) return "";
  return fmt::format("pleat: rank {} was waiting in {}, {} bytes\n{}", stuck->rank, named(stuck->entry),
                     stuck->entry.bytes, rows(stuck));
}

std::string Watchdog::find_stall(double timeout_seconds) const {
  std::optional<Stuck> stuck;
  for (const int rank : view_.own) {
    for (const FlightEntry& e : view_.flights[static_cast<size_t>(rank)]->entries()) {
      if (e.state == FlightState::InFlight && (!stuck || e.started_ns < stuck->entry.started_ns))
        stuck = Stuck{rank, e};
    }
  }
  if (!stuck || waited(stuck->entry) < timeout_seconds) return "";
  stuck = nearest_to_cause(*stuck, timeout_seconds / 2);
  const FlightEntry& e = stuck->entry;
  return fmt::format("pleat: stall: {}, {} bytes: rank {} has waited {:.1f} s, the time-out is {:g} s\n{}{}",
                     named(e), e.bytes, stuck->rank, seconds_since(e.started_ns), timeout_seconds,
                     not_come(*stuck), rows(stuck));
}

std::string Watchdog::not_come(const Stuck& stuck) const {
  if (!std::string_view(stuck.entry.stage).starts_with(kOpening)) return "";
  std::vector<int> missing;
  for (const int member : members_of(stuck)) {
    const RankFlight* flight = view_.flights[static_cast<size_t>(member)];
    if (flight && arrival(flight->entries(), member, stuck.entry, stuck.rank) == Arrival::No)
      missing.push_back(member);
  }
  if (missing.empty()) return "";
  return fmt::format("pleat: these ranks have not come: {}\n", fmt::join(missing, ", "));
}

Watchdog::Stuck Watchdog::nearest_to_cause(Stuck best, double at_least_seconds) const {
  std::vector<std::vector<FlightEntry>> calls(view_.flights.size());
  for (size_t r = 0; r < calls.size(); ++r)
    if (view_.flights[r]) calls[r] = view_.flights[r]->entries();
  const auto in_flight = [](const FlightEntry& e) { return e.state == FlightState::InFlight; };
  std::vector<char> still(calls.size());
  for (size_t r = 0; r < calls.size(); ++r) still[r] = is_still(static_cast<int>(r)) ? 1 : 0;
  // 0: somebody is missing who waits for nobody, or makes another call; 1: a collective; 2: a message.
  const auto rank_of = [&](const Stuck& stuck) {
    for (const int member : members_of(stuck)) {
      const std::vector<FlightEntry>& theirs = calls[static_cast<size_t>(member)];
      const Arrival a = arrival(theirs, member, stuck.entry, stuck.rank);
      if (a == Arrival::OtherCall || (a == Arrival::No && view_.flights[static_cast<size_t>(member)] &&
                                      (still[static_cast<size_t>(member)] != 0 ||
                                       std::none_of(theirs.begin(), theirs.end(), in_flight))))
        return 0;
    }
    return is_message(stuck.entry) ? 2 : 1;
  };
  // Whoever is at the end of its run has nothing left to do: what the others wait for says more.
  const auto closes = [](const FlightEntry& e) { return std::string_view(e.group) == kClosing; };
  const auto order = [&](const Stuck& s) {
    return std::tuple(rank_of(s), is_message(s.entry), closes(s.entry), s.entry.started_ns);
  };
  auto best_order = order(best);
  for (size_t r = 0; r < calls.size(); ++r) {
    if (still[r] != 0) continue;
    for (const FlightEntry& e : calls[r]) {
      const Stuck other{static_cast<int>(r), e};
      if (!in_flight(e) || waited(e) < at_least_seconds || !(order(other) < best_order)) continue;
      best = other;
      best_order = order(other);
    }
  }
  return best;
}

std::string Watchdog::table() const { return rows(std::nullopt); }

std::vector<int> Watchdog::members_of(const Stuck& stuck) const {
  if (is_message(stuck.entry)) {
    std::vector<int> members = {stuck.rank, stuck.entry.peer};
    if (stuck.entry.from >= 0) members.push_back(stuck.entry.from);
    return members;
  }
  const std::lock_guard lock(mutex_);
  const auto found = groups_.find(stuck.entry.group_hash);
  if (found != groups_.end()) return found->second;
  // A group this process is not in: whoever has made a call there.
  std::vector<int> members;
  for (size_t r = 0; r < view_.flights.size(); ++r) {
    if (!view_.flights[r]) continue;
    const std::vector<FlightEntry> entries = view_.flights[r]->entries();
    if (std::any_of(entries.begin(), entries.end(),
                    [&](const FlightEntry& e) { return e.group_hash == stuck.entry.group_hash; }))
      members.push_back(static_cast<int>(r));
  }
  return members;
}

std::string Watchdog::rows(const std::optional<Stuck>& stuck) const {
  const std::vector<int> members = stuck ? members_of(*stuck) : std::vector<int>();
  std::string text = fmt::format("  {:>4}  {:<11}  {}\n", "rank", stuck ? "arrived" : "state", "where");
  for (int rank = 0; rank < static_cast<int>(view_.flights.size()); ++rank) {
    const RankFlight* flight = view_.flights[static_cast<size_t>(rank)];
    const bool member = std::find(members.begin(), members.end(), rank) != members.end();
    if (flight == nullptr) {
      if (member || !stuck) text += fmt::format("  {:>4}  {:<11}  on another machine\n", rank, "?");
      continue;
    }
    const std::vector<FlightEntry> entries = flight->entries();
    std::string at = where(entries);
    if (flight->state() == RankState::Failed) at = fmt::format("{}; {}", flight->why_failed(), at);
    if (stuck && flight->state() != RankState::Running) at = fmt::format("{}; {}", state_words(*flight), at);
    if (is_gone(rank)) {
      at = fmt::format("{}; {}", how_gone(*flight), at);
    } else {
      if (is_stopped(rank)) at = fmt::format("process {} is stopped; {}", flight->process(), at);
      if (const std::string more = view_.remark ? view_.remark(rank) : ""; !more.empty())
        at = fmt::format("{}; {}", more, at);
    }
    const char* state = "NOT ARRIVED";
    if (!stuck)
      state = is_gone(rank) ? "gone" : state_words(*flight);
    else if (!member)
      state = "no member";
    else if (const Arrival a = arrival(entries, rank, stuck->entry, stuck->rank); a != Arrival::No)
      state = a == Arrival::Yes ? "yes" : "OTHER CALL";
    else if (view_.silent && view_.silent(rank) && !is_gone(rank))
      state = "silent";  // it may have arrived since it was heard
    text += fmt::format("  {:>4}  {:<11}  {}\n", rank, state, at);
  }
  return text;
}

std::string Watchdog::own_calls() const {
  std::string text;
  for (const int rank : view_.own)
    for (const FlightEntry& e : view_.flights[static_cast<size_t>(rank)]->entries())
      if (e.state == FlightState::InFlight)
        text += fmt::format("pleat: rank {} was in {}, {:.1f} s\n", rank, named(e), waited(e));
  return text;
}

void Watchdog::report(const std::string& table) {
  if (options_.on_stall) {
    options_.on_stall(table);
    return;
  }
  // So that the others name what was first, and not this process, which ends because of it.
  if (view_.self) {
    const size_t begin = table.starts_with(kSays) ? kSays.size() : 0;
    view_.self->fail(table.substr(begin, table.find('\n') - begin));
    if (view_.tell) view_.tell();
  }
  uint32_t free = 0;
  const bool mine = view_.claim == nullptr || view_.claim->compare_exchange_strong(free, 1);
  if (mine) {
    std::fflush(stdout);
    std::fputs(table.c_str(), stderr);
    std::fflush(stderr);
  } else {
    // Another rank of this machine writes the table; this one says what it knows itself.
    std::fputs((table.substr(0, table.find("  rank  ")) + own_calls()).c_str(), stderr);
    std::fflush(stderr);
    // Ending at once could take the machine's launcher, and with it the writer of the table, down too early.
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
  // Threads are stuck in calls: nothing can be unwound or joined any more.
  std::_Exit(static_cast<int>(base::ExitCode::Retry));
}

}  // namespace pleat::comm
