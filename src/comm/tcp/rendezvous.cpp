#include "comm/tcp/rendezvous.h"

#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/host_name.h"

namespace pleat::comm::tcp {
namespace {

// A stranger that says nothing is not waited for.
constexpr auto kPatience = std::chrono::seconds(5);
constexpr size_t kMaxPending = 256;
// Where there are too many of them, this long is enough to have said something.
constexpr auto kShortPatience = std::chrono::milliseconds(500);

// One line of the list rank 0 sends to all.
struct Known {
  char address[64] = {};
  uint32_t port = 0;
  char host[96] = {};
};

template <size_t N>
void put(char (&to)[N], const std::string& text) {
  std::memcpy(to, text.data(), std::min(text.size(), N - 1));
}

// Accepts those ranks of the world that are expected, in whatever order they come, beside strangers.
class Acceptor {
 public:
  Acceptor(const Door& door, Socket listening) : door_(door), listening_(std::move(listening)) {}
  int port() const { return port_of(listening_); }

  // Fills peers, known and hosts of all ranks in `expected`.
  void accept(std::vector<int> expected, Met& met, std::vector<Known>& known, const Until& until) {
    while (!expected.empty()) {
      if (until.is_called_off())
        base::fail_with(
            base::ExitCode::Retry,
            "rank {} of {} was asked to stop while it waited at port {} for these ranks to come: {}",
            door_.rank, door_.size, port(), fmt::join(expected, ", "));
      if (Clock::now() >= until.deadline)
        base::fail_with(base::ExitCode::Retry,
                        "rank {} has waited at port {}, and these ranks have not come: {}{}{}", door_.rank,
                        port(), fmt::join(expected, ", "), hindered_,
                        refused_.empty() ? "" : "; turned away: " + refused_);
      wait(until.deadline);
      accept_waiting();
      for (size_t i = 0; i < pending_.size();) {
        if (const std::optional<uint32_t> rank = hear(pending_[i], expected, known)) {
          const auto r = static_cast<size_t>(*rank);
          std::erase(expected, static_cast<int>(r));
          met.peers[r] = std::move(pending_[i].socket);
          met.hosts[r] = known[r].host;
        }
        if (pending_[i].socket)
          ++i;
        else
          pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
  }

 private:
  struct Pending {
    Socket socket;
    Greeting greeting;
    Hello hello;
    size_t got = 0;
    Clock::time_point since;
  };

  // Everybody who waits and for whom there is room. `full_` if somebody may be left: then there will be room soon.
  void accept_waiting() {
    full_ = false;
    for (;;) {
      if (pending_.size() >= kMaxPending && !drop_oldest()) {
        full_ = true;
        return;
      }
      std::string why;
      Socket socket = accept_from(listening_, why);
      if (socket) {
        greet(std::move(socket));
        continue;
      }
      if (why.empty()) return;
      // Those that have not shown who they are may go, and others come in their place; without them nothing changes.
      if (pending_.empty())
        base::fail_with(base::ExitCode::Retry, "rank {} cannot let other ranks in at port {}: {}", door_.rank,
                        port(), why);
      hindered_ = "; " + why;
      full_ = !drop_oldest();
      if (full_) return;
    }
  }

  // They lie in the order of their coming; who has not shown by now who it is makes room. False: all are new.
  bool drop_oldest() {
    if (pending_.empty() || Clock::now() < pending_.front().since + kShortPatience) return false;
    refuse(pending_.front(), "said nothing", "");
    pending_.erase(pending_.begin());
    return true;
  }

  void wait(Clock::time_point deadline) {
    // A connection that waits and cannot be accepted would end every wait at once.
    std::vector<pollfd> all;
    if (!full_) all.push_back({listening_.descriptor(), POLLIN, 0});
    for (const Pending& p : pending_) all.push_back({p.socket.descriptor(), POLLIN, 0});
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    (void)::poll(all.data(), all.size(), static_cast<int>(std::clamp<int64_t>(left, 1, 200)));
  }

  void greet(Socket socket) {
    Pending p;
    p.greeting.rank = static_cast<uint32_t>(door_.rank);
    p.greeting.nonce = make_nonce();
    p.since = Clock::now();
    p.socket = std::move(socket);
    std::string why;
    // A fresh connection takes 32 bytes at once.
    if (!write_all(p.socket, std::as_bytes(std::span(&p.greeting, 1)), Clock::now(), why)) return;
    pending_.push_back(std::move(p));
  }

  // The rank that has proved itself; its socket is then the caller's. One that failed to has no socket any more.
  std::optional<uint32_t> hear(Pending& p, const std::vector<int>& expected, std::vector<Known>& known) {
    auto* const at = reinterpret_cast<std::byte*>(&p.hello);
    const ssize_t n = ::recv(p.socket.descriptor(), at + p.got, sizeof p.hello - p.got, 0);
    if (n > 0) p.got += static_cast<size_t>(n);
    const bool closed = n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
    // What cannot be one of us is known by its first bytes.
    const size_t seen = std::min(p.got, kMagic.size());
    if (std::memcmp(p.hello.magic.data(), kMagic.data(), seen) != 0)
      return refuse(p, "speaks another language", "");
    if (p.got < sizeof p.hello) {
      if (closed || Clock::now() > p.since + kPatience)
        return refuse(p, closed ? "went away" : "said nothing", "");
      return std::nullopt;
    }
    const Hello& hello = p.hello;
    if (hello.version != kVersion)
      return refuse(p, fmt::format("speaks version {}", hello.version),
                    fmt::format("rank {} speaks version {}: all ranks need one build", door_.rank, kVersion));
    if (!equal(hello.proof, prove(door_.token, p.greeting, hello)))
      return refuse(p, "has another job's token", "another job listens here: the tokens differ");
    if (hello.size != static_cast<uint32_t>(door_.size))
      return refuse(p, fmt::format("says the world has {} ranks", hello.size),
                    fmt::format("rank {} was told that the world has {} ranks, not {}", door_.rank,
                                door_.size, hello.size));
    if (hello.rank >= hello.size)
      return refuse(p, fmt::format("says it is rank {}, outside the world", hello.rank),
                    fmt::format("rank {} is outside a world of {} ranks: they are 0 to {}", hello.rank,
                                door_.size, door_.size - 1));
    if (std::find(expected.begin(), expected.end(), static_cast<int>(hello.rank)) == expected.end())
      return refuse(p, fmt::format("says it is rank {}, which is here already or not awaited", hello.rank),
                    fmt::format("there is a rank {} already: two processes were given one rank", hello.rank));
    Known& k = known[hello.rank];
    put(k.address, address_of_peer(p.socket));
    k.port = hello.port;
    std::memcpy(k.host, hello.host, sizeof k.host);
    k.host[sizeof k.host - 1] = 0;
    Answer answer;
    answer.accepted = 1;
    answer.proof = prove_back(door_.token, hello, answer);
    std::string why;
    if (!write_all(p.socket, std::as_bytes(std::span(&answer, 1)), Clock::now() + kPatience, why))
      return refuse(p, why, "");
    return hello.rank;
  }

  std::optional<uint32_t> refuse(Pending& p, const std::string& who, const std::string& told) {
    if (num_refused_++ < 3)
      refused_ += fmt::format("{}{} ({})", refused_.empty() ? "" : ", ", address_of_peer(p.socket), who);
    if (!told.empty()) {
      Answer answer;
      put(answer.why, told);
      std::string why;
      (void)write_all(p.socket, std::as_bytes(std::span(&answer, 1)), Clock::now(), why);
    }
    p.socket.close();
    return std::nullopt;
  }

  const Door& door_;
  Socket listening_;
  std::vector<Pending> pending_;
  std::string refused_, hindered_;
  int num_refused_ = 0;
  bool full_ = false;
};

std::vector<int> between(int first, int end) {
  std::vector<int> ranks;
  for (int r = first; r < end; ++r) ranks.push_back(r);
  return ranks;
}

}  // namespace

Met meet(const Door& door, double seconds, const std::function<bool()>& called_off) {
  const Until until(
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)),
      called_off);
  // What a call says that was cut short is not why this rank ends.
  const auto require_not_called_off = [&] {
    if (until.is_called_off())
      base::fail_with(base::ExitCode::Retry,
                      "rank {} of {} was asked to stop while it waited at {}:{} for the other ranks",
                      door.rank, door.size, door.address, door.port);
  };
  const auto n = static_cast<size_t>(door.size);
  Met met;
  met.peers.resize(n);
  met.hosts.resize(n);
  std::vector<Known> known(n);
  const std::string own_host = base::host_name();
  met.hosts[static_cast<size_t>(door.rank)] = own_host;
  put(known[static_cast<size_t>(door.rank)].host, own_host);
  std::string why;
  const std::span<std::byte> list = std::as_writable_bytes(std::span(known));
  const std::span<std::byte> start = std::as_writable_bytes(std::span(met.start));
  if (door.rank == 0) {
    Acceptor acceptor(door, door.listening >= 0 ? take_listening(door.listening) : listen_at(door.port));
    acceptor.accept(between(1, door.size), met, known, until);
    met.start = make_nonce();
    for (size_t r = 1; r < n; ++r)
      if (!write_all(met.peers[r], start, until, why) || !write_all(met.peers[r], list, until, why)) {
        require_not_called_off();
        base::fail_with(base::ExitCode::Retry, "rank 0 has lost rank {} at the start: {}", r, why);
      }
    return met;
  }
  Acceptor acceptor(door, listen_at(0));
  Hello hello;
  hello.rank = static_cast<uint32_t>(door.rank);
  hello.size = static_cast<uint32_t>(door.size);
  hello.port = static_cast<uint32_t>(acceptor.port());
  put(hello.host, own_host);
  const auto connect = [&](int to, const std::string& address, int port) {
    const std::string here =
        fmt::format("rank {} cannot reach rank {} at {}:{}", door.rank, to, address, port);
    try {
      met.peers[static_cast<size_t>(to)] = connect_to(address, port, until);
    } catch (const base::Error& e) {
      require_not_called_off();
      base::fail_with(base::ExitCode::Retry, "{} within {:g} s ({})", here, seconds, e.what());
    }
    try {
      introduce(met.peers[static_cast<size_t>(to)], hello, static_cast<uint32_t>(to), door.token, until,
                here);
    } catch (const base::Error&) {
      require_not_called_off();
      throw;
    }
  };
  connect(0, door.address, door.port);
  if (!read_all(met.peers[0], start, until, why) || !read_all(met.peers[0], list, until, why)) {
    require_not_called_off();
    base::fail_with(base::ExitCode::Retry, "rank {} waited at rank 0 for the others to come: {}", door.rank,
                    why);
  }
  for (size_t r = 0; r < n; ++r) {
    known[r].address[sizeof known[r].address - 1] = 0;
    known[r].host[sizeof known[r].host - 1] = 0;
    met.hosts[r] = known[r].host;
  }
  // Whoever shares rank 0's machine may have come to it by an address that means something only there.
  const std::string first = address_of_peer(met.peers[0]);
  for (int r = 1; r < door.rank; ++r) {
    const Known& k = known[static_cast<size_t>(r)];
    connect(r, met.hosts[static_cast<size_t>(r)] == met.hosts[0] ? first : k.address,
            static_cast<int>(k.port));
  }
  acceptor.accept(between(door.rank + 1, door.size), met, known, until);
  return met;
}

}  // namespace pleat::comm::tcp
