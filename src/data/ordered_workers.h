// Work on pieces in several threads, results taken in the order the pieces came: what comes out does not
// depend on the number of threads, and neither does which error is reported.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace pleat::data {

template <class Piece>
class OrderedWorkers {
 public:
  // `work` runs in the threads, `take` in the caller's, inside add() and finish(). One thread: both run
  // there.
  OrderedWorkers(int64_t num_threads, std::function<void(Piece&)> work, std::function<void(Piece&)> take)
      : work_(std::move(work)), take_(std::move(take)) {
    if (num_threads <= 1) return;
    for (int64_t i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run(); });
  }

  ~OrderedWorkers() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  OrderedWorkers(const OrderedWorkers&) = delete;
  OrderedWorkers& operator=(const OrderedWorkers&) = delete;

  // Bounded: waits for the oldest piece when many are under way. Throws what `work` threw for a piece when it
  // is that piece's turn; nothing may be added after that.
  void add(Piece piece) {
    if (threads_.empty()) {
      work_(piece);
      take_(piece);
      return;
    }
    auto slot = std::make_shared<Slot>(std::move(piece));
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(slot);
    }
    wake_.notify_one();
    under_way_.push_back(std::move(slot));
    while (under_way_.size() > 3 * threads_.size()) take_oldest();
  }

  // Takes what is left.
  void finish() {
    while (!under_way_.empty()) take_oldest();
  }

 private:
  struct Slot {
    explicit Slot(Piece p) : piece(std::move(p)) {}
    Piece piece;
    bool done = false;
    std::exception_ptr error = {};
  };

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (stopping_) return;
      const std::shared_ptr<Slot> slot = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      std::exception_ptr error;
      try {
        work_(slot->piece);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      slot->error = error;
      slot->done = true;
      done_.notify_all();
    }
  }

  void take_oldest() {
    const std::shared_ptr<Slot> slot = std::move(under_way_.front());
    under_way_.pop_front();
    {
      std::unique_lock lock(mutex_);
      done_.wait(lock, [&] { return slot->done; });
    }
    if (slot->error) {
      under_way_.clear();
      std::rethrow_exception(slot->error);
    }
    take_(slot->piece);
  }

  std::function<void(Piece&)> work_, take_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<std::shared_ptr<Slot>> waiting_;    // guarded
  std::deque<std::shared_ptr<Slot>> under_way_;  // the caller's, in order
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace pleat::data
