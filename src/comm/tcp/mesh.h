// Messages between the processes of a run, one connection to each.
//
// A thread reads all connections: what comes goes to the memory of who waits for it, or is kept until somebody does.
// So a sender never waits for a receive to be posted, and two that send to each other at once cannot block. Senders
// write from their own thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "comm/tcp/socket.h"

namespace pleat::comm::tcp {

// A message that is awaited. Lives until it is done or was given up.
struct Awaited {
  enum class State : uint8_t { Waiting, Arriving, Done, WrongSize, Lost };
  int from = 0;
  uint64_t channel = 0;
  int tag = 0;
  std::span<std::byte> data;
  State state = State::Waiting;
  uint64_t sent_bytes = 0;  // WrongSize: what came instead
};

class Mesh {
 public:
  // Called once for each rank whose connection ends before it said goodbye, from the reading thread.
  using OnLost = std::function<void(int rank)>;
  // What ranks tell each other beside messages; called from the reading thread.
  using OnNote = std::function<void(int rank, std::span<const std::byte> note)>;

  Mesh(int rank, std::vector<Socket> peers, OnLost on_lost, OnNote on_note);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int rank() const { return rank_; }

  // Messages of one (sender, receiver, channel, tag) keep their order. Any thread. `send` throws (Retry) when the
  // connection is lost or the rank was called off; `here` says whose message it is.
  void send(int to, uint64_t channel, int tag, std::span<const std::byte> data, const std::string& here);
  void post(Awaited& awaited);
  // Until none of them waits any more. Throws likewise; the memory is free then too.
  void wait(std::span<Awaited* const> all, const std::string& here);
  // Until each of `ranks`, this one among them, has called it. Throws likewise, and after `seconds`, naming those that
  // have not; soon after `called_off` becomes true as well. Each tells each: so everybody knows who is missing, not only who waits for it.
  void meet(std::span<const int> ranks, uint64_t channel, double seconds, const std::string& here,
            const std::function<bool()>& called_off = {});

  // What a rank did that ended its connection here; "" if it has not, or has just gone.
  std::string why_lost(int rank);

  // Up to kMaxNote bytes, left out when the connection is busy.
  static constexpr size_t kMaxNote = 8192;
  // Who announces more is no rank that works.
  static constexpr uint64_t kMaxMessage = uint64_t{1} << 40;
  void note(int to, std::span<const std::byte> note);

  // A thread of this rank has failed: waiting threads give up.
  void call_off();
  // To all, before a good end: connections that close behind it are no failure.
  void say_goodbye();

 private:
  struct Header {
    uint32_t kind = 0, tag = 0;
    uint64_t channel = 0, bytes = 0;
  };
  enum Kind : uint32_t { kMessage = 0x4d534721, kNote = 0x4e4f5445, kGoodbye = 0x42594521 };
  struct Peer {
    Socket socket;
    std::mutex writing;
    // Read by the reading thread alone.
    Header header;
    size_t got = 0;  // of the header, then of the payload
    bool in_payload = false;
    std::byte* to = nullptr;
    Awaited* awaited = nullptr;
    std::vector<std::byte> kept;
    // Under mutex_.
    bool lost = false, left = false;
    std::string why_lost;
  };
  using Key = std::tuple<int, uint64_t, int>;
  struct Queue {
    std::deque<Awaited*> awaited;
    std::deque<std::vector<std::byte>> arrived;
  };

  void read_all_peers();
  bool read_from(int rank);  // false: the connection has ended; throws what a peer broke
  void begin_payload(int rank);
  void end_payload(int rank);
  void lose(int rank, const std::string& why);
  void make_room(Peer& peer);
  static void fill(Awaited& awaited, std::span<const std::byte> data);
  void write(int to, const Header& header, std::span<const std::byte> data, const std::string& here);
  [[noreturn]] void fail_lost(int rank, const std::string& here);
  void give_up(std::span<Awaited* const> all);
  // Without a deadline: as long as it takes.
  void wait(std::span<Awaited* const> all, const Until* until, const std::string& here);

  int rank_;
  std::vector<std::unique_ptr<Peer>> peers_;
  OnLost on_lost_;
  OnNote on_note_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, Queue> queues_;
  std::atomic<bool> called_off_{false}, stopping_{false};
  int wake_[2] = {-1, -1};
  std::thread thread_;
};

}  // namespace pleat::comm::tcp
