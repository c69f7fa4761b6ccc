#include "comm/tcp/mesh.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace pleat::comm::tcp {
namespace {

// Whoever watches over the ranks sees a lost one too, and has more to say; it ends the process then.
constexpr auto kWatchdogFirst = std::chrono::milliseconds(1500);
constexpr auto kTick = std::chrono::milliseconds(100);

// What of the limit a message takes.
uint64_t cost_of(uint64_t bytes) { return bytes + kKeptOverhead; }

// Its bytes come, or may at any time.
bool is_under_way(const Awaited& a) {
  return a.state == Awaited::State::Called || a.state == Awaited::State::Arriving;
}

}  // namespace

uint64_t most_kept_of_peer(int world_size) {
  return std::clamp(kMostKept / static_cast<uint64_t>(std::max(world_size - 1, 1)), kLeastKeptOfPeer,
                    kMostKeptOfPeer);
}

Mesh::Mesh(int rank, std::vector<Socket> peers, OnLost on_lost, OnNote on_note)
    : rank_(rank),
      on_lost_(std::move(on_lost)),
      on_note_(std::move(on_note)),
      limit_(most_kept_of_peer(static_cast<int>(peers.size()))) {
  for (Socket& socket : peers) {
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->socket = std::move(socket);
    peers_.back()->may_send = limit_;
  }
  if (::pipe2(wake_, O_CLOEXEC | O_NONBLOCK) != 0)
    base::fail_with(base::ExitCode::Retry, "no pipe: {}", std::strerror(errno));
  thread_ = std::thread([this] { read_all_peers(); });
}

Mesh::~Mesh() {
  stopping_ = true;
  wake_reader();
  thread_.join();
  ::close(wake_[0]);
  ::close(wake_[1]);
}

void Mesh::wake_reader() { (void)!::write(wake_[1], "x", 1); }

void Mesh::flush(int rank) {
  Peer& peer = *peers_[static_cast<size_t>(rank)];
  if (peer.socket && peer.outbox.flush(peer.socket)) wake_reader();
}

void Mesh::read_all_peers() {
  std::vector<pollfd> all;
  std::vector<int> ranks;
  while (!stopping_) {
    all.assign(1, {wake_[0], POLLIN, 0});
    ranks.assign(1, -1);
    for (int r = 0; r < static_cast<int>(peers_.size()); ++r) {
      const Peer& peer = *peers_[static_cast<size_t>(r)];
      // Only this thread marks a connection as ended.
      if (!peer.socket || peer.lost) continue;
      const int room = peer.outbox.is_full() ? POLLOUT : 0;
      all.push_back({peer.socket.descriptor(), static_cast<short>(POLLIN | room), 0});
      ranks.push_back(r);
    }
    if (::poll(all.data(), all.size(), -1) < 0 && errno != EINTR) return;
    char woken[64];
    if (all[0].revents != 0) (void)!::read(wake_[0], woken, sizeof woken);
    for (size_t i = 1; i < all.size() && !stopping_; ++i) {
      if (all[i].revents == 0) continue;
      if ((all[i].revents & POLLOUT) != 0) flush(ranks[i]);
      try {
        if (!read_from(ranks[i])) lose(ranks[i], "");
      } catch (const std::bad_alloc&) {
        lose(ranks[i], fmt::format("sent a message of {} bytes, and there is no memory to keep it",
                                   peers_[static_cast<size_t>(ranks[i])]->header.bytes));
      } catch (const std::exception& e) {
        lose(ranks[i], e.what());
      }
    }
  }
}

bool Mesh::read_from(int rank) {
  Peer& peer = *peers_[static_cast<size_t>(rank)];
  // A bounded number of turns, so that one busy connection does not keep the others waiting.
  for (int turn = 0; turn < 64; ++turn) {
    const size_t whole = peer.in_payload ? peer.header.bytes : sizeof peer.header;
    std::byte* const at = peer.in_payload ? peer.to : reinterpret_cast<std::byte*>(&peer.header);
    const ssize_t n = ::recv(peer.socket.descriptor(), at + peer.got, whole - peer.got, 0);
    if (n == 0) return false;
    if (n < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN;
    }
    peer.got += static_cast<size_t>(n);
    if (peer.got < whole) continue;
    if (!peer.in_payload) {
      const Header& h = peer.header;
      const auto require_at_most = [&](const char* what, uint64_t most) {
        if (h.bytes > most)
          base::fail_with(base::ExitCode::Retry, "announced a {} of {} bytes, {} at most", what, h.bytes,
                          most);
      };
      switch (h.kind) {
        case kMessage:
        case kCalled:
        case kAnnounced:
          require_at_most("message", kMaxMessage);
          break;
        case kNote:
          require_at_most("note", kMaxNote);
          break;
        case kGoodbye:
          require_at_most("goodbye", 0);
          break;
        case kCome:
        case kTaken:
          break;
        default:
          base::fail_with(base::ExitCode::Retry, "sent what is no message");
      }
      if (h.kind == kAnnounced || h.kind == kCome || h.kind == kTaken) {
        peer.got = 0;
        hear(rank);
        continue;
      }
      begin_payload(rank);
      if (peer.header.bytes > 0) continue;
    }
    end_payload(rank);
  }
  return true;
}

void Mesh::begin_payload(int rank) {
  Peer& peer = *peers_[static_cast<size_t>(rank)];
  peer.got = 0;
  peer.in_payload = true;
  peer.awaited = nullptr;
  const Header& h = peer.header;
  if (h.kind == kMessage || h.kind == kCalled) {
    const std::lock_guard lock(mutex_);
    be_ready_for(rank, h);
    if (peer.awaited != nullptr) {
      peer.awaited->state = Awaited::State::Arriving;
      peer.to = peer.awaited->data.data();
      return;
    }
  }
  peer.kept.resize(h.bytes);
  peer.to = peer.kept.data();
}

// Finds who awaits it, or that it may be kept.
void Mesh::be_ready_for(int rank, const Header& h) {
  Peer& peer = *peers_[static_cast<size_t>(rank)];
  if (h.kind == kCalled) {
    const auto found = peer.called.find(h.number);
    if (found == peer.called.end() || found->second->data.size() != h.bytes)
      base::fail_with(base::ExitCode::Retry, "sent {} bytes that nobody called for", h.bytes);
    peer.awaited = found->second;
    peer.called.erase(found);
    return;
  }
  if (cost_of(h.bytes) > limit_ - peer.held)
    base::fail_with(base::ExitCode::Retry,
                    "sent {} bytes before they were awaited; {} more were allowed, of {} in all", h.bytes,
                    limit_ - peer.held, limit_);
  peer.held += cost_of(h.bytes);
  Queue& queue = queues_[{rank, h.channel, static_cast<int>(h.tag)}];
  if (!queue.awaited.empty() && queue.awaited.front()->data.size() == h.bytes) {
    peer.awaited = queue.awaited.front();
    queue.awaited.pop_front();
    return;
  }
  kept_ += cost_of(h.bytes);
  most_kept_ = std::max(most_kept_, kept_);
}

void Mesh::hear(int rank) {
  Peer& peer = *peers_[static_cast<size_t>(rank)];
  const Header& h = peer.header;
  {
    const std::lock_guard lock(mutex_);
    if (h.kind == kTaken) {
      if (h.bytes > limit_ - peer.may_send)
        base::fail_with(base::ExitCode::Retry, "says it took {} bytes, of at most {}", h.bytes,
                        limit_ - peer.may_send);
      peer.may_send += h.bytes;
    } else if (h.kind == kCome) {
      // Whoever had announced it may have given up.
      const auto found = peer.announced.find(h.number);
      if (found != peer.announced.end()) *found->second = {true, h.bytes};
    } else {
      Queue& queue = queues_[{rank, h.channel, static_cast<int>(h.tag)}];
      if (queue.awaited.empty()) {
        queue.arrived.push_back({{}, h.number, h.bytes});
      } else {
        Awaited* const first = queue.awaited.front();
        queue.awaited.pop_front();
        call(*first, h.number, h.bytes);
      }
    }
  }
  changed_.notify_all();
  flush(rank);
}

void Mesh::call(Awaited& awaited, uint64_t number, uint64_t bytes) {
  Peer& peer = *peers_[static_cast<size_t>(awaited.from)];
  peer.outbox.say({kCome, 0, 0, awaited.data.size(), number});
  if (awaited.data.size() != bytes) {  // its sender sees that too, and keeps it
    awaited.state = Awaited::State::WrongSize;
    awaited.sent_bytes = bytes;
    return;
  }
  awaited.state = Awaited::State::Called;
  peer.called[number] = &awaited;
}

// Told from time to time: a sender that has no room meanwhile announces.
void Mesh::give_back(int from, uint64_t bytes) {
  if (from == rank_) return;
  Peer& peer = *peers_[static_cast<size_t>(from)];
  peer.taken += cost_of(bytes);
  if (peer.taken < limit_ / 4) return;
  peer.outbox.say({kTaken, 0, 0, peer.taken, 0});
  peer.held -= peer.taken;
  peer.taken = 0;
}

void Mesh::end_payload(int rank) {
  Peer& peer = *peers_[static_cast<size_t>(rank)];
  peer.got = 0;
  peer.in_payload = false;
  const Header& h = peer.header;
  if (h.kind == kNote) {
    if (on_note_) on_note_(rank, peer.kept);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (h.kind == kGoodbye) {
      peer.left = true;
      return;
    }
    if (peer.awaited != nullptr) {
      peer.awaited->state = Awaited::State::Done;
      peer.awaited = nullptr;
      if (h.kind == kMessage) give_back(rank, h.bytes);
    } else {
      Queue& queue = queues_[{rank, h.channel, static_cast<int>(h.tag)}];
      Arrived arrived{std::move(peer.kept), 0, h.bytes};
      peer.kept = {};
      if (queue.awaited.empty()) {
        queue.arrived.push_back(std::move(arrived));
      } else {
        Awaited* const first = queue.awaited.front();
        queue.awaited.pop_front();
        take(*first, arrived);
      }
    }
  }
  changed_.notify_all();
  flush(rank);
}

void Mesh::take(Awaited& awaited, const Arrived& arrived) {
  if (arrived.number != 0) return call(awaited, arrived.number, arrived.bytes);
  fill(awaited, arrived.kept);
  if (awaited.from == rank_) return;
  kept_ -= cost_of(arrived.bytes);
  give_back(awaited.from, arrived.bytes);
}

void Mesh::fill(Awaited& awaited, std::span<const std::byte> data) {
  if (data.size() != awaited.data.size()) {
    awaited.state = Awaited::State::WrongSize;
    awaited.sent_bytes = data.size();
    return;
  }
  if (!data.empty()) std::memcpy(awaited.data.data(), data.data(), data.size());
  awaited.state = Awaited::State::Done;
}

void Mesh::lose(int rank, const std::string& why) {
  Peer& peer = *peers_[static_cast<size_t>(rank)];
  // It may still be there, and shall know.
  if (!why.empty()) (void)::shutdown(peer.socket.descriptor(), SHUT_RDWR);
  bool left = false;
  {
    const std::lock_guard lock(mutex_);
    peer.lost = true;
    peer.why_lost = why;
    peer.kept = {};
    left = peer.left;
    if (peer.awaited != nullptr) peer.awaited->state = Awaited::State::Lost;
    peer.awaited = nullptr;
    for (auto& [number, awaited] : peer.called) awaited->state = Awaited::State::Lost;
    peer.called.clear();
    for (auto& [key, queue] : queues_) {
      if (std::get<0>(key) != rank) continue;
      std::erase_if(queue.arrived, [](const Arrived& a) { return a.number != 0; });
      for (Awaited* a : queue.awaited) a->state = Awaited::State::Lost;
      queue.awaited.clear();
    }
  }
  changed_.notify_all();
  if (!left && !stopping_ && on_lost_) on_lost_(rank);
}

void Mesh::post(Awaited& awaited) {
  {
    const std::lock_guard lock(mutex_);
    Queue& queue = queues_[{awaited.from, awaited.channel, awaited.tag}];
    if (!queue.arrived.empty()) {
      const Arrived first = std::move(queue.arrived.front());
      queue.arrived.pop_front();
      take(awaited, first);
    } else if (peers_[static_cast<size_t>(awaited.from)]->lost) {
      awaited.state = Awaited::State::Lost;
    } else {
      queue.awaited.push_back(&awaited);
    }
  }
  flush(awaited.from);
}

uint64_t Mesh::most_kept() {
  const std::lock_guard lock(mutex_);
  return most_kept_;
}

std::string Mesh::why_lost(int rank) {
  const std::lock_guard lock(mutex_);
  return peers_[static_cast<size_t>(rank)]->why_lost;
}

void Mesh::meet(std::span<const int> ranks, uint64_t channel, double seconds, const std::string& here,
                const std::function<bool()>& called_off) {
  const Until until(
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)),
      called_off);
  std::vector<Awaited> awaited(ranks.size());
  std::vector<Awaited*> all;
  for (size_t i = 0; i < ranks.size(); ++i) {
    awaited[i].from = ranks[i];
    awaited[i].channel = channel;
    all.push_back(&awaited[i]);
    post(awaited[i]);
  }
  try {
    for (const int r : ranks) send(r, channel, 0, {}, here);
  } catch (...) {
    give_up(all);
    throw;
  }
  wait(all, &until, here);
}

void Mesh::wait(std::span<Awaited* const> all, const std::string& here) { wait(all, nullptr, here); }

void Mesh::wait(std::span<Awaited* const> all, const Until* until, const std::string& here) {
  std::unique_lock lock(mutex_);
  const auto waits = [](const Awaited* a) { return a->state == Awaited::State::Waiting || is_under_way(*a); };
  const auto broken = [](const Awaited* a) {
    return a->state == Awaited::State::WrongSize || a->state == Awaited::State::Lost;
  };
  const auto over = [&] {
    return called_off_ || std::none_of(all.begin(), all.end(), waits) ||
           std::any_of(all.begin(), all.end(), broken);
  };
  std::vector<int> missing;
  bool stopped = false;
  if (until == nullptr) {
    changed_.wait(lock, over);
  } else {
    while (!over() && !until->is_over()) changed_.wait_for(lock, kTick, over);
    stopped = until->is_called_off();
    for (const Awaited* a : all)
      if (!over() && waits(a)) missing.push_back(a->from);
  }
  const auto fault = std::find_if(all.begin(), all.end(), broken);
  if (fault == all.end() && std::none_of(all.begin(), all.end(), waits)) return;
  lock.unlock();
  give_up(all);
  if (!missing.empty())
    base::fail_with(base::ExitCode::Retry, "{}: {}these ranks have not come: {}", here,
                    stopped ? "asked to stop, and " : "", fmt::join(missing, ", "));
  if (fault == all.end()) fail_called_off(here);
  if ((*fault)->state == Awaited::State::Lost) fail_lost((*fault)->from, here);
  base::fail("{}: rank {} sent {} bytes, {} bytes awaited", here, (*fault)->from, (*fault)->sent_bytes,
             (*fault)->data.size());
}

void Mesh::give_up(std::span<Awaited* const> all) {
  std::unique_lock lock(mutex_);
  for (Awaited* a : all) {
    if (a->state == Awaited::State::Waiting) {
      std::erase(queues_[{a->from, a->channel, a->tag}].awaited, a);
      a->state = Awaited::State::Done;
    }
    // It would still be written: the connection ends.
    if (is_under_way(*a))
      (void)::shutdown(peers_[static_cast<size_t>(a->from)]->socket.descriptor(), SHUT_RDWR);
  }
  changed_.wait(lock, [&] {
    return std::none_of(all.begin(), all.end(), [](const Awaited* a) { return is_under_way(*a); });
  });
}

void Mesh::fail_called_off(const std::string& here) {
  base::fail_with(base::ExitCode::Retry, "{}: given up, another thread of this rank has failed", here);
}

void Mesh::fail_lost(int rank, const std::string& here) {
  bool left = false;
  std::string why;
  {
    std::unique_lock lock(mutex_);
    left = peers_[static_cast<size_t>(rank)]->left;
    why = peers_[static_cast<size_t>(rank)]->why_lost;
    if (!left) changed_.wait_for(lock, kWatchdogFirst, [this] { return called_off_.load(); });
  }
  if (why.empty())
    why = left ? "has ended its run" : "has closed its connection: its process or its machine is gone";
  base::fail_with(base::ExitCode::Retry, "{}: rank {} {}", here, rank, why);
}

void Mesh::send(int to, uint64_t channel, int tag, std::span<const std::byte> data, const std::string& here) {
  Header header{kMessage, static_cast<uint32_t>(tag), channel, data.size(), 0};
  Announced announced;
  {
    const std::lock_guard lock(mutex_);
    if (to == rank_) {
      Queue& queue = queues_[{to, channel, tag}];
      if (!queue.awaited.empty()) {
        fill(*queue.awaited.front(), data);
        queue.awaited.pop_front();
      } else {
        queue.arrived.push_back({{data.begin(), data.end()}, 0, data.size()});
      }
      changed_.notify_all();
      return;
    }
    Peer& peer = *peers_[static_cast<size_t>(to)];
    if (peer.may_send >= cost_of(data.size())) {
      peer.may_send -= cost_of(data.size());
    } else {
      header.number = ++peer.num_announced;
      peer.announced[header.number] = &announced;
    }
  }
  if (header.number != 0 && !is_called_for(to, header, announced, here)) return;
  header.kind = header.number == 0 ? kMessage : kCalled;
  write(to, header, data, here);
}

bool Mesh::is_called_for(int to, Header header, const Announced& announced, const std::string& here) {
  Peer& peer = *peers_[static_cast<size_t>(to)];
  const auto forget = [&] { peer.announced.erase(header.number); };
  header.kind = kAnnounced;
  try {
    write(to, header, {}, here);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    forget();
    throw;
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return announced.may_come || peer.lost || called_off_; });
  forget();
  if (announced.may_come) return announced.awaited_bytes == header.bytes;
  const bool lost = peer.lost;
  lock.unlock();
  if (lost) fail_lost(to, here);
  fail_called_off(here);
}

void Mesh::write(int to, const Header& header, std::span<const std::byte> data, const std::string& here) {
  Peer& peer = *peers_[static_cast<size_t>(to)];
  const Outbox::Result result = peer.outbox.write(peer.socket, header, data, called_off_);
  if (result == Outbox::Result::Lost) fail_lost(to, here);
  if (result == Outbox::Result::CalledOff) fail_called_off(here);
  flush(to);
}

void Mesh::note(int to, std::span<const std::byte> note) {
  const Peer& peer = *peers_[static_cast<size_t>(to)];
  if (peers_[static_cast<size_t>(to)]->outbox.is_busy(peer.socket)) return;
  try {
    write(to, {kNote, 0, 0, note.size(), 0}, note, "a sign of life");
  } catch (const base::Error&) {  // the reading thread sees a lost connection too
  }
}

void Mesh::call_off() {
  {
    const std::lock_guard lock(mutex_);  // or a thread that is about to wait would not hear of it
    called_off_ = true;
  }
  changed_.notify_all();
}

void Mesh::say_goodbye() {
  for (int r = 0; r < static_cast<int>(peers_.size()); ++r) {
    if (r == rank_) continue;
    try {
      write(r, {kGoodbye, 0, 0, 0, 0}, {}, "the end of the run");
    } catch (const base::Error&) {  // it has gone first
    }
  }
}

}  // namespace pleat::comm::tcp
