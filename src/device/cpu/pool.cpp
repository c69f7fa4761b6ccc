#include "device/cpu/pool.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.h"
#include "device/cpu/blas.h"

namespace pleat::device {
namespace {

// Stages follow each other within microseconds, so a thread that finds nothing to do looks again for a short
// while before it sleeps: waking a sleeper costs more than most tiles.
constexpr int kSpins = 4000;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

struct Pool::State {
  std::mutex caller;  // one loop at a time
  std::mutex mutex;
  std::condition_variable wake, done;
  const TileFunction* body = nullptr;
  int64_t num_tiles = 0;
  std::atomic<int64_t> next{0};
  std::atomic<uint64_t> generation{0};
  std::atomic<int> busy{0};
  std::atomic<bool> stop{false};
  int spins = 0;
  std::optional<BlasRoom> room;
  std::vector<std::thread> workers;

  ~State() {
    {
      std::lock_guard lock(mutex);
      stop = true;
    }
    wake.notify_all();
    for (std::thread& t : workers) t.join();
  }

  void drain(const TileFunction& f, int64_t n) {
    for (int64_t tile; (tile = next.fetch_add(1, std::memory_order_relaxed)) < n;) f(tile);
  }

  void work() {
    uint64_t seen = 0;
    while (true) {
      for (int i = 0; i < spins && generation.load(std::memory_order_acquire) == seen &&
                      !stop.load(std::memory_order_relaxed);
           ++i)
        pause_briefly();
      if (generation.load(std::memory_order_acquire) == seen) {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return stop || generation != seen; });
      }
      if (stop) return;
      seen = generation.load(std::memory_order_acquire);
      drain(*body, num_tiles);
      if (busy.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        std::lock_guard lock(mutex);  // so that the caller cannot miss it between its look and its sleep
        done.notify_one();
      }
    }
  }
};

Pool::Pool(int num_threads) : state_(std::make_unique<State>()) {
  if (num_threads < 1 || num_threads > 4096)
    base::fail("thread count {} is not between 1 and 4096", num_threads);
  // Loads the library and takes its memory here, where a failure can be thrown, and not inside a tile.
  state_->room.emplace(num_threads);
  // More threads than cores: a spinning thread would stand in the way of a working one.
  state_->spins = static_cast<unsigned>(num_threads) <= std::thread::hardware_concurrency() ? kSpins : 0;
  try {
    for (int i = 1; i < num_threads; ++i) state_->workers.emplace_back([s = state_.get()] { s->work(); });
  } catch (const std::system_error& e) {
    base::fail_with(base::ExitCode::Internal, "cannot start {} worker threads: {}", num_threads - 1,
                    e.code().message());
  }
}

Pool::~Pool() = default;

int Pool::num_threads() const { return static_cast<int>(state_->workers.size()) + 1; }

void Pool::for_each_tile(int64_t num_tiles, TileFunction body) {
  if (num_tiles <= 0) return;
  if (num_tiles == 1 || state_->workers.empty()) {
    for (int64_t tile = 0; tile < num_tiles; ++tile) body(tile);
    return;
  }
  State& s = *state_;
  std::lock_guard one_loop(s.caller);
  s.body = &body;
  s.num_tiles = num_tiles;
  s.next.store(0, std::memory_order_relaxed);
  s.busy.store(static_cast<int>(s.workers.size()), std::memory_order_relaxed);
  {
    std::lock_guard lock(s.mutex);
    s.generation.fetch_add(1, std::memory_order_release);
  }
  s.wake.notify_all();
  s.drain(body, num_tiles);
  for (int i = 0; i < s.spins && s.busy.load(std::memory_order_acquire) != 0; ++i) pause_briefly();
  if (s.busy.load(std::memory_order_acquire) != 0) {
    std::unique_lock lock(s.mutex);
    s.done.wait(lock, [&] { return s.busy.load(std::memory_order_acquire) == 0; });
  }
}

}  // namespace pleat::device
