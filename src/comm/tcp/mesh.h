// Messages between the processes of a run, one connection to each.
//
// A thread reads all connections: what comes goes to the memory of who waits for it, or is kept until somebody does.
// Senders write from their own thread.
//
// What is kept is bounded. Each rank keeps at most `most_kept_of_peer` bytes of each other: so much may be sent before
// it is awaited, and what was taken may be sent again. A message that finds no room is announced, and goes when it is
// awaited, straight to its memory: so one that is awaited always comes, whatever lies before it, also a longer one.
// Two ranks that both send before either receives may therefore wait for each other, as a communicator says
// (comm/communicator.h). Whoever sends more than it may is lost with the reason.
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

#include "comm/tcp/outbox.h"

namespace pleat::comm::tcp {

// A message that is awaited. Lives until it is done or was given up.
struct Awaited {
  enum class State : uint8_t { Waiting, Called, Arriving, Done, WrongSize, Lost };
  int from = 0;
  uint64_t channel = 0;
  int tag = 0;
  std::span<std::byte> data;
  State state = State::Waiting;  // Called: it was announced and may come
  uint64_t sent_bytes = 0;       // WrongSize: what came instead
};

// Memory of a rank for messages that nobody awaits yet, of all others together, and of one of them.
inline constexpr uint64_t kMostKept = uint64_t{256} << 20;
inline constexpr uint64_t kLeastKeptOfPeer = uint64_t{64} << 10, kMostKeptOfPeer = uint64_t{16} << 20;
// The same on all ranks of a world of that size.
uint64_t most_kept_of_peer(int world_size);
// Memory of a message that is kept, beside its bytes.
inline constexpr uint64_t kKeptOverhead = 128;

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
  // connection is lost or the rank was called off; `here` says whose message it is. It may wait until the message is
  // awaited.
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

  // The most that was kept at one time for messages nobody awaited.
  uint64_t most_kept();

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
  enum Kind : uint32_t {
    kMessage = 0x4d534721,    // with its bytes
    kAnnounced = 0x41534b21,  // a word: message `number` of so many bytes would come
    kCome = 0x434f4d45,       // a word: message `number` is awaited, and how long
    kCalled = 0x43414c4c,     // message `number` with its bytes
    kTaken = 0x54414b45,      // a word: so many bytes are kept no longer
    kNote = 0x4e4f5445,
    kGoodbye = 0x42594521
  };
  struct Announced {
    bool may_come = false;
    uint64_t awaited_bytes = 0;
  };
  struct Peer {
    Socket socket;
    Outbox outbox;
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
    uint64_t may_send = 0;                     // before it is awaited there
    uint64_t num_announced = 0;                // by this rank
    std::map<uint64_t, Announced*> announced;  // of them, those whose senders wait
    uint64_t held = 0, taken = 0;              // of what it may send: used, and free again but not told yet
    std::map<uint64_t, Awaited*> called;       // by its number
  };
  // Its bytes, or that it would come.
  struct Arrived {
    std::vector<std::byte> kept;
    uint64_t number = 0, bytes = 0;  // number 0: it is here
  };
  using Key = std::tuple<int, uint64_t, int>;
  struct Queue {
    std::deque<Awaited*> awaited;
    std::deque<Arrived> arrived;
  };

  void read_all_peers();
  bool read_from(int rank);  // false: the connection has ended; throws what a peer broke
  void begin_payload(int rank);
  void end_payload(int rank);
  void lose(int rank, const std::string& why);
  void hear(int rank);  // a word
  // Under mutex_.
  void be_ready_for(int rank, const Header& header);
  void call(Awaited& awaited, uint64_t number, uint64_t bytes);
  void give_back(int from, uint64_t bytes);
  void take(Awaited& awaited, const Arrived& arrived);
  // Announces a message and waits. False: what is awaited is longer or shorter, and whoever awaits it says so.
  bool is_called_for(int to, Header header, const Announced& announced, const std::string& here);
  void flush(int rank);
  void wake_reader();
  static void fill(Awaited& awaited, std::span<const std::byte> data);
  void write(int to, const Header& header, std::span<const std::byte> data, const std::string& here);
  [[noreturn]] static void fail_called_off(const std::string& here);
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
  const uint64_t limit_;  // most_kept_of_peer
  uint64_t kept_ = 0, most_kept_ = 0;
  std::atomic<bool> called_off_{false}, stopping_{false};
  int wake_[2] = {-1, -1};
  std::thread thread_;
};

}  // namespace pleat::comm::tcp
