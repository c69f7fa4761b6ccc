#include "device/cpu/pool.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "device/cpu/blas.h"

namespace pleat::device {

struct Pool::State {
  std::mutex caller;  // one loop at a time
  std::mutex mutex;
  std::condition_variable wake, done;
  const TileFunction* body = nullptr;
  int64_t num_tiles = 0;
  std::atomic<int64_t> next{0};
  uint64_t generation = 0;
  int busy = 0;
  bool stop = false;
  std::vector<std::thread> workers;

  void drain(const TileFunction& f, int64_t n) {
    for (int64_t tile; (tile = next.fetch_add(1, std::memory_order_relaxed)) < n;) f(tile);
  }

  void work() {
    uint64_t seen = 0;
    std::unique_lock lock(mutex);
    while (true) {
      wake.wait(lock, [&] { return stop || generation != seen; });
      if (stop) return;
      seen = generation;
      const TileFunction f = *body;
      const int64_t n = num_tiles;
      lock.unlock();
      drain(f, n);
      lock.lock();
      if (--busy == 0) done.notify_one();
    }
  }
};

Pool::Pool(int num_threads) : state_(std::make_unique<State>()) {
  if (num_threads < 1 || num_threads > 4096) base::fail("thread count {} is not between 1 and 4096", num_threads);
  blas_description();  // loads the library here, where a failure can be thrown, and not inside a tile
  for (int i = 1; i < num_threads; ++i) state_->workers.emplace_back([s = state_.get()] { s->work(); });
}

Pool::~Pool() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake.notify_all();
  for (std::thread& t : state_->workers) t.join();
}

int Pool::num_threads() const { return static_cast<int>(state_->workers.size()) + 1; }

void Pool::for_each_tile(int64_t num_tiles, TileFunction body) {
  if (num_tiles <= 0) return;
  if (num_tiles == 1 || state_->workers.empty()) {
    for (int64_t tile = 0; tile < num_tiles; ++tile) body(tile);
    return;
  }
  std::lock_guard one_loop(state_->caller);
  {
    std::lock_guard lock(state_->mutex);
    state_->body = &body;
    state_->num_tiles = num_tiles;
    state_->next.store(0, std::memory_order_relaxed);
    state_->busy = static_cast<int>(state_->workers.size());
    ++state_->generation;
  }
  state_->wake.notify_all();
  state_->drain(body, num_tiles);
  std::unique_lock lock(state_->mutex);
  state_->done.wait(lock, [&] { return state_->busy == 0; });
}

}  // namespace pleat::device
