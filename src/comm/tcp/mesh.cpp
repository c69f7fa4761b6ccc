#include "comm/tcp/mesh.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
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
// What is kept for a message before its bytes come; more only as they do, so that a wrong length costs nothing.
constexpr uint64_t kFirstRoom = uint64_t{64} << 20;

}  // namespace

Mesh::Mesh(int rank, std::vector<Socket> peers, OnLost on_lost, OnNote on_note)
    : rank_(rank), on_lost_(std::move(on_lost)), on_note_(std::move(on_note)) {
  for (Socket& socket : peers) {
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->socket = std::move(socket);
  }
  if (::pipe2(wake_, O_CLOEXEC | O_NONBLOCK) != 0)
    base::fail_with(base::ExitCode::Retry, "no pipe: {}", std::strerror(errno));
  thread_ = std::thread([this] { read_all_peers(); });
}

Mesh::~Mesh() {
  stopping_ = true;
  (void)!::write(wake_[1], "x", 1);
  thread_.join();
  ::close(wake_[0]);
  ::close(wake_[1]);
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
      all.push_back({peer.socket.descriptor(), POLLIN, 0});
      ranks.push_back(r);
    }
    if (::poll(all.data(), all.size(), -1) < 0 && errno != EINTR) return;
    for (size_t i = 1; i < all.size() && !stopping_; ++i) {
      if (all[i].revents == 0) continue;
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
    if (peer.in_payload && peer.awaited == nullptr) make_room(peer);
    const size_t room = peer.in_payload && peer.awaited == nullptr ? peer.kept.size() : whole;
    std::byte* const at = peer.in_payload ? peer.to : reinterpret_cast<std::byte*>(&peer.header);
    const ssize_t n = ::recv(peer.socket.descriptor(), at + peer.got, room - peer.got, 0);
    if (n == 0) return false;
    if (n < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN;
    }
    peer.got += static_cast<size_t>(n);
    if (peer.got < whole) continue;
    if (!peer.in_payload) {
      const Header& h = peer.header;
      if (h.kind != kMessage && h.kind != kNote && h.kind != kGoodbye)
        base::fail_with(base::ExitCode::Retry, "sent what is no message");
      const uint64_t most = h.kind == kMessage ? kMaxMessage : h.kind == kNote ? kMaxNote : 0;
      if (h.bytes > most)
        base::fail_with(base::ExitCode::Retry, "announced a {} of {} bytes, {} at most",
                        h.kind == kMessage ? "message"
                        : h.kind == kNote  ? "note"
                                           : "goodbye",
                        h.bytes, most);
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
  if (h.kind == kMessage) {
    const std::lock_guard lock(mutex_);
    Queue& queue = queues_[{rank, h.channel, static_cast<int>(h.tag)}];
    if (!queue.awaited.empty() && queue.arrived.empty()) {
      Awaited* const first = queue.awaited.front();
      if (first->data.size() == h.bytes) {
        queue.awaited.pop_front();
        first->state = Awaited::State::Arriving;
        peer.awaited = first;
        peer.to = first->data.data();
        return;
      }
    }
  }
  peer.kept.clear();
  make_room(peer);
}

void Mesh::make_room(Peer& peer) {
  if (peer.got < peer.kept.size()) return;
  peer.kept.resize(std::min(peer.header.bytes, std::max<uint64_t>(kFirstRoom, 2 * peer.kept.size())));
  peer.to = peer.kept.data();
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
  const std::lock_guard lock(mutex_);
  if (h.kind == kGoodbye) {
    peer.left = true;
    return;
  }
  if (peer.awaited != nullptr) {
    peer.awaited->state = Awaited::State::Done;
    peer.awaited = nullptr;
  } else {
    Queue& queue = queues_[{rank, h.channel, static_cast<int>(h.tag)}];
    if (!queue.awaited.empty() && queue.arrived.empty()) {
      fill(*queue.awaited.front(), peer.kept);
      queue.awaited.pop_front();
    } else {
      queue.arrived.push_back(std::move(peer.kept));
      peer.kept = {};
    }
  }
  changed_.notify_all();
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
    for (auto& [key, queue] : queues_) {
      if (std::get<0>(key) != rank) continue;
      for (Awaited* a : queue.awaited) a->state = Awaited::State::Lost;
      queue.awaited.clear();
    }
  }
  changed_.notify_all();
  if (!left && !stopping_ && on_lost_) on_lost_(rank);
}

void Mesh::post(Awaited& awaited) {
  const std::lock_guard lock(mutex_);
  Queue& queue = queues_[{awaited.from, awaited.channel, awaited.tag}];
  if (!queue.arrived.empty()) {
    fill(awaited, queue.arrived.front());
    queue.arrived.pop_front();
  } else if (peers_[static_cast<size_t>(awaited.from)]->lost) {
    awaited.state = Awaited::State::Lost;
  } else {
    queue.awaited.push_back(&awaited);
  }
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
  const auto waits = [](const Awaited* a) {
    return a->state == Awaited::State::Waiting || a->state == Awaited::State::Arriving;
  };
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
  if (fault == all.end())
    base::fail_with(base::ExitCode::Retry, "{}: given up, another thread of this rank has failed", here);
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
    // Half of it has come, and the rest would still be written: the connection ends.
    if (a->state == Awaited::State::Arriving)
      (void)::shutdown(peers_[static_cast<size_t>(a->from)]->socket.descriptor(), SHUT_RDWR);
  }
  changed_.wait(lock, [&] {
    return std::none_of(all.begin(), all.end(),
                        [](const Awaited* a) { return a->state == Awaited::State::Arriving; });
  });
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
  if (to == rank_) {
    const std::lock_guard lock(mutex_);
    Queue& queue = queues_[{to, channel, tag}];
    if (!queue.awaited.empty() && queue.arrived.empty()) {
      fill(*queue.awaited.front(), data);
      queue.awaited.pop_front();
    } else {
      queue.arrived.emplace_back(data.begin(), data.end());
    }
    changed_.notify_all();
    return;
  }
  write(to, {kMessage, static_cast<uint32_t>(tag), channel, data.size()}, data, here);
}

void Mesh::write(int to, const Header& header, std::span<const std::byte> data, const std::string& here) {
  Peer& peer = *peers_[static_cast<size_t>(to)];
  const std::lock_guard lock(peer.writing);
  std::span<const std::byte> rest[2] = {std::as_bytes(std::span(&header, 1)), data};
  while (!rest[0].empty() || !rest[1].empty()) {
    iovec parts[2];
    for (int i = 0; i < 2; ++i) parts[i] = {const_cast<std::byte*>(rest[i].data()), rest[i].size()};
    msghdr message{};
    message.msg_iov = rest[0].empty() ? parts + 1 : parts;
    message.msg_iovlen = rest[0].empty() ? 1 : 2;
    const ssize_t n = ::sendmsg(peer.socket.descriptor(), &message, MSG_NOSIGNAL);
    if (n >= 0) {
      auto left = static_cast<size_t>(n);
      for (auto& part : rest) {
        const size_t taken = std::min(left, part.size());
        part = part.subspan(taken);
        left -= taken;
      }
      continue;
    }
    if (errno != EAGAIN && errno != EINTR) fail_lost(to, here);
    if (called_off_)
      base::fail_with(base::ExitCode::Retry, "{}: given up, another thread of this rank has failed", here);
    (void)wait_for(peer.socket.descriptor(), POLLOUT, Clock::now() + kTick);
  }
}

void Mesh::note(int to, std::span<const std::byte> note) {
  Peer& peer = *peers_[static_cast<size_t>(to)];
  {
    const std::unique_lock free(peer.writing, std::try_to_lock);
    if (!free || !wait_for(peer.socket.descriptor(), POLLOUT, Clock::now())) return;
  }
  try {
    write(to, {kNote, 0, 0, note.size()}, note, "a sign of life");
  } catch (const base::Error&) {  // the reading thread sees a lost connection too
  }
}

void Mesh::call_off() {
  called_off_ = true;
  changed_.notify_all();
}

void Mesh::say_goodbye() {
  for (int r = 0; r < static_cast<int>(peers_.size()); ++r) {
    if (r == rank_) continue;
    try {
      write(r, {kGoodbye, 0, 0, 0}, {}, "the end of the run");
    } catch (const base::Error&) {  // it has gone first
    }
  }
}

}  // namespace pleat::comm::tcp
