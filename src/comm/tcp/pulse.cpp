#include "comm/tcp/pulse.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "comm/tcp/mesh.h"

namespace pleat::comm::tcp {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(250);
constexpr double kSilent = 1;  // seconds: four signs of life that did not come

// Clocks of machines differ: times travel as how long ago they were.
struct Note {
  static constexpr size_t kMaxCalls = 16;
  RankState state{};
  uint32_t num_calls = 0;
  char why[256] = {};
  FlightEntry calls[kMaxCalls];
};
static_assert(sizeof(Note) <= Mesh::kMaxNote);

void turn_around(FlightEntry& e, int64_t now) {
  for (int64_t* ns : {&e.enqueued_ns, &e.started_ns, &e.ended_ns})
    if (*ns != 0) *ns = now - *ns;
}

}  // namespace

Mirrors::Mirrors(const std::vector<std::string>& hosts, int rank)
    : flights_(hosts.size()), heard_ns_(new std::atomic<int64_t>[hosts.size()]()) {
  for (size_t r = 0; r < hosts.size(); ++r) {
    if (hosts[r] == hosts[static_cast<size_t>(rank)]) continue;
    flights_[r] = std::make_unique<RankFlight>();
    flights_[r]->start(0);
    heard_ns_[r] = steady_ns();
  }
}

void Mirrors::take(int rank, std::span<const std::byte> note) {
  Note heard;
  if (!is_far(rank) || note.size() != sizeof heard) return;
  std::memcpy(&heard, note.data(), sizeof heard);
  heard_ns_[static_cast<size_t>(rank)] = steady_ns();
  const size_t n = std::min<size_t>(heard.num_calls, Note::kMaxCalls);
  for (size_t i = 0; i < n; ++i) turn_around(heard.calls[i], steady_ns());
  heard.why[sizeof heard.why - 1] = 0;
  flight(rank)->mirror(heard.state, heard.why, {heard.calls, n});
}

double Mirrors::seconds_silent(int rank) const {
  if (!is_far(rank)) return 0;
  return static_cast<double>(steady_ns() - heard_ns_[static_cast<size_t>(rank)]) * 1e-9;
}

bool Mirrors::is_silent(int rank) const { return seconds_silent(rank) >= kSilent; }

std::string Mirrors::silence(int rank) const {
  return is_silent(rank) ? fmt::format("no sign of life for {:.1f} s", seconds_silent(rank)) : "";
}

Pulse::Pulse(Mesh& mesh, const RankFlight& own, std::vector<int> to)
    : mesh_(mesh), own_(own), to_(std::move(to)) {
  if (to_.empty()) return;
  thread_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      const int asked = asked_;
      lock.unlock();
      beat();
      lock.lock();
      beaten_ = asked;
      wake_.notify_all();
      wake_.wait_for(lock, kInterval, [&] { return stopping_ || asked_ != asked; });
    }
  });
}

void Pulse::last_beat(double seconds) {
  if (to_.empty()) return;
  std::unique_lock lock(mutex_);
  ++asked_;
  wake_.notify_all();
  wake_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return beaten_ == asked_; });
}

Pulse::~Pulse() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Pulse::beat() {
  if (to_.empty()) return;
  Note note;
  note.state = own_.state();
  const std::string why = own_.why_failed();
  std::memcpy(note.why, why.data(), std::min(why.size(), sizeof note.why - 1));
  const int64_t now = steady_ns();
  for (FlightEntry e : own_.entries()) {
    if (note.num_calls == Note::kMaxCalls) break;
    turn_around(e, now);
    note.calls[note.num_calls++] = e;
  }
  for (const int rank : to_) mesh_.note(rank, std::as_bytes(std::span(&note, 1)));
}

}  // namespace pleat::comm::tcp
