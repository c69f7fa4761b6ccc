#include "comm/flight.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/error.h"

namespace pleat::comm {

int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void RankFlight::store(Slot& slot, const FlightEntry& entry) {
  uint64_t words[kWords] = {};
  std::memcpy(words, &entry, sizeof entry);
  const uint32_t version = slot.version.load(std::memory_order_relaxed);
  slot.version.store(version + 1, std::memory_order_relaxed);
  // Release on every word: a reader that sees one of them also sees the odd version before it.
  for (size_t i = 0; i < kWords; ++i) slot.words[i].store(words[i], std::memory_order_release);
  slot.version.store(version + 2, std::memory_order_release);
}

bool RankFlight::load(const Slot& slot, FlightEntry& entry) {
  const uint32_t before = slot.version.load(std::memory_order_acquire);
  if (before == 0 || before % 2 != 0) return false;
  uint64_t words[kWords];
  for (size_t i = 0; i < kWords; ++i) words[i] = slot.words[i].load(std::memory_order_acquire);
  if (slot.version.load(std::memory_order_relaxed) != before) return false;
  std::memcpy(&entry, words, sizeof entry);
  return true;
}

int RankFlight::begin(FlightEntry entry) {
  entry.order = next_.fetch_add(1, std::memory_order_relaxed);
  entry.state = FlightState::InFlight;
  entry.started_ns = steady_ns();
  for (uint64_t i = entry.order;; ++i) {
    const int index = static_cast<int>(i % kNumEntries);
    Slot& slot = slots_[index];
    uint32_t free = 0;
    if (slot.busy.compare_exchange_strong(free, 1, std::memory_order_acquire)) {
      store(slot, entry);
      return index;
    }
    PLEAT_CHECK(i < entry.order + (1U << 20), "more than {} calls of one rank at the same time",
                +kNumEntries);
  }
}

void RankFlight::end(int slot_idx, FlightState state) {
  Slot& slot = slots_[slot_idx];
  FlightEntry entry;
  PLEAT_CHECK(load(slot, entry));
  entry.state = state;
  entry.ended_ns = steady_ns();
  store(slot, entry);
  slot.busy.store(0, std::memory_order_release);
}

void RankFlight::mirror(RankState state, const std::string& why, std::span<const FlightEntry> entries) {
  for (size_t i = 0; i < std::min<size_t>(entries.size(), kNumEntries); ++i) store(slots_[i], entries[i]);
  if (state == RankState::Failed) fail(why);
  if (state == RankState::Left) leave();
}

std::vector<FlightEntry> RankFlight::entries() const {
  std::vector<FlightEntry> found;
  for (const Slot& slot : slots_) {
    FlightEntry entry;
    // A writer is between its two versions for nanoseconds, unless its process was stopped right there.
    for (int attempt = 0; attempt < 1000; ++attempt) {
      if (load(slot, entry)) {
        found.push_back(entry);
        break;
      }
      if (slot.version.load(std::memory_order_relaxed) == 0) break;
    }
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.order > b.order; });
  return found;
}

void RankFlight::start(int32_t process) {
  process_.store(process, std::memory_order_relaxed);
  state_.store(static_cast<int32_t>(RankState::Running), std::memory_order_release);
}

void RankFlight::fail(const std::string& why) {
  auto running = static_cast<int32_t>(RankState::Running);
  const size_t length = std::min(why.size(), std::size(why_));
  uint32_t unset = 0;
  if (!why_length_.compare_exchange_strong(unset, static_cast<uint32_t>(std::max<size_t>(length, 1)))) return;
  for (size_t i = 0; i < length; ++i) why_[i].store(why[i], std::memory_order_relaxed);
  state_.compare_exchange_strong(running, static_cast<int32_t>(RankState::Failed), std::memory_order_release);
}

void RankFlight::leave() {
  auto running = static_cast<int32_t>(RankState::Running);
  state_.compare_exchange_strong(running, static_cast<int32_t>(RankState::Left), std::memory_order_release);
}

bool RankFlight::failed_in_call() const {
  const std::vector<FlightEntry> all = entries();
  return std::any_of(all.begin(), all.end(),
                     [](const FlightEntry& e) { return e.state == FlightState::Failed; });
}

std::string RankFlight::why_failed() const {
  std::string text;
  if (state() != RankState::Failed) return text;
  for (uint32_t i = 0; i < why_length_.load(); ++i) text += why_[i].load(std::memory_order_relaxed);
  return text;
}

}  // namespace pleat::comm
