#include "checkpoint/ranks_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

namespace pleat::checkpoint {

namespace {

thread_local int rank_of_thread = 0;

class Hub {
 public:
  explicit Hub(int num_ranks)
      : ended_(static_cast<size_t>(num_ranks)),
        told_(static_cast<size_t>(num_ranks)),
        said_(static_cast<size_t>(num_ranks)) {}

  // Runs on while the others wait; hands on until `ready`.
  void wait_for(int rank, std::unique_lock<std::mutex>& lock, const std::function<bool()>& ready) {
    while (!ready()) {
      if (power_lost_) throw base::PowerLoss{};
      if (lost_ >= 0) base::fail_with(base::ExitCode::Retry, "rank {} is lost", lost_);
      if (std::count(ended_.begin(), ended_.end(), 0) == 1)
        base::fail_with(base::ExitCode::Internal, "rank {} waits and no other is left", rank);
      hand_on();
      changed_.wait(lock, [&] { return turn_ == rank; });
    }
  }
  void begin(int rank) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return turn_ == rank; });
  }
  void end(int rank, bool failed, bool power_lost) {
    std::unique_lock lock(mutex_);
    ended_[static_cast<size_t>(rank)] = true;
    if (failed && lost_ < 0) lost_ = rank;
    power_lost_ = power_lost_ || power_lost;
    hand_on();
  }
  std::string tell(int rank, const std::string& text) {
    std::unique_lock lock(mutex_);
    if (rank == 0) return messages_.push_back(text), text;
    size_t& next = told_[static_cast<size_t>(rank)];
    wait_for(rank, lock, [&] { return next < messages_.size(); });
    return messages_[next++];
  }
  std::vector<std::string> gather(int rank, const std::string& text) {
    std::unique_lock lock(mutex_);
    said_[static_cast<size_t>(rank)].push_back(text);
    if (rank != 0) return {};
    wait_for(rank, lock, [&] {
      return std::all_of(said_.begin(), said_.end(), [](const auto& texts) { return !texts.empty(); });
    });
    std::vector<std::string> out;
    for (auto& texts : said_) out.push_back(texts.front()), texts.erase(texts.begin());
    return out;
  }

 private:
  void hand_on() {
    const int n = static_cast<int>(ended_.size());
    for (int i = 1; i <= n; ++i) {
      const int next = (turn_ + i) % n;
      if (ended_[static_cast<size_t>(next)]) continue;
      turn_ = next;
      break;
    }
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int turn_ = 0, lost_ = -1;
  bool power_lost_ = false;
  std::vector<char> ended_;
  std::vector<std::string> messages_;
  std::vector<size_t> told_;
  std::vector<std::vector<std::string>> said_;
};

class HubPeers : public Peers {
 public:
  HubPeers(Hub& hub, int rank, int size) : hub_(hub), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string tell(const std::string& text) override { return hub_.tell(rank_, text); }
  std::vector<std::string> gather(const std::string& text) override { return hub_.gather(rank_, text); }

 private:
  Hub& hub_;
  const int rank_, size_;
};

}  // namespace

int running_rank() { return rank_of_thread; }

std::vector<std::exception_ptr> run_ranks(int num_ranks, const std::function<void(Peers&)>& main) {
  Hub hub(num_ranks);
  std::vector<std::exception_ptr> thrown(static_cast<size_t>(num_ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank)
    threads.emplace_back([&, rank] {
      rank_of_thread = rank;
      HubPeers peers(hub, rank, num_ranks);
      hub.begin(rank);
      bool power_lost = false;
      try {
        main(peers);
      } catch (const base::PowerLoss&) {
        power_lost = true;
        thrown[static_cast<size_t>(rank)] = std::current_exception();
      } catch (...) {
        thrown[static_cast<size_t>(rank)] = std::current_exception();
      }
      hub.end(rank, thrown[static_cast<size_t>(rank)] != nullptr, power_lost);
    });
  for (std::thread& t : threads) t.join();
  return thrown;
}

SplitState::SplitState(const TestState& state, int num_ranks) {
  const StateView view = state.view();
  for (int r = 0; r < num_ranks; ++r)
    shares_.push_back({view.step, {}, view.integers, view.reals, view.texts});
  for (size_t i = 0; i < view.tensors.size(); ++i) {
    const TensorRef& t = view.tensors[i];
    const auto length = static_cast<int64_t>(t.bytes.size());
    const int64_t columns = t.shape.size() == 2 && i != 2 ? length / std::max<int64_t>(t.shape[0], 1) : 0;
    const int64_t row_bytes = i == 0 ? columns : i == 3 ? 40 : length;
    for (int r = 0; r < num_ranks; ++r) {
      std::vector<Part> parts;
      if (i == 0) {  // columns of every row
        for (int64_t row = 0; row < length / columns; ++row) {
          const int64_t begin = columns * r / num_ranks, end = columns * (r + 1) / num_ranks;
          if (begin < end) parts.push_back({row * columns + begin, 0, end - begin});
        }
      } else if (i == 2 || i == 3) {  // a piece, cut anywhere
        const int64_t begin = length * r / num_ranks, end = length * (r + 1) / num_ranks;
        if (begin < end) parts.push_back({begin, 0, end - begin});
      } else if (static_cast<int>(i) % num_ranks == r && length > 0) {
        parts.push_back({0, 0, length});
      }
      // The last part first, with unused bytes between.
      std::vector<std::byte>& own = *memory_.emplace_back(std::make_unique<std::vector<std::byte>>());
      for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
        own.push_back(std::byte{0xEE});
        part->out_begin = static_cast<int64_t>(own.size());
        const auto from =
            t.bytes.host().subspan(static_cast<size_t>(part->tensor_begin), static_cast<size_t>(part->count));
        own.insert(own.end(), from.begin(), from.end());
      }
      shares_[static_cast<size_t>(r)].tensors.push_back(
          {t.name, t.dtype, t.shape, row_bytes, own, [parts] { return parts; }});
    }
  }
}

SaveResult save_together(base::Vfs& vfs, const std::string& directory, const TestState& state, int num_ranks,
                         const SaveOptions& options) {
  const SplitState split(state, num_ranks);
  std::vector<SaveResult> results(static_cast<size_t>(num_ranks));
  const std::vector<std::exception_ptr> thrown = run_ranks(num_ranks, [&](Peers& peers) {
    results[static_cast<size_t>(peers.rank())] =
        save(vfs, directory, split.share(peers.rank()), options, peers);
  });
  const auto message = [](const std::exception_ptr& error) -> std::string {
    if (!error) return "";
    try {
      std::rethrow_exception(error);
    } catch (const base::PowerLoss&) {
      return "power loss";
    } catch (const std::exception& e) {
      return e.what();
    }
  };
  for (size_t r = 1; r < results.size(); ++r) {
    EXPECT_EQ(message(thrown[r]), message(thrown[0])) << "rank " << r;
    EXPECT_EQ(results[r].state_sha256, results[0].state_sha256);
  }
  if (thrown[0]) std::rethrow_exception(thrown[0]);
  return results[0];
}

}  // namespace pleat::checkpoint
