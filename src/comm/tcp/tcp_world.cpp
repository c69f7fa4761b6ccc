#include "comm/tcp/tcp_world.h"

#include <algorithm>
#include <numeric>

#include "base/hash.h"
#include "comm/messages/message_group.h"
#include "comm/process/process_endpoint.h"
#include "comm/tcp/mesh.h"
#include "comm/tcp/pulse.h"
#include "comm/tcp/shared_memory.h"

namespace pleat::comm {
namespace {

// Of the start itself; calls of groups have channels that are their hashes.
constexpr uint64_t kStartChannel = 1;

class TcpExchange : public Exchange {
 public:
  TcpExchange(tcp::Mesh& mesh, uint64_t channel, std::span<const int> ranks, std::string here)
      : mesh_(mesh), channel_(channel), ranks_(ranks), here_(std::move(here)) {}
  // What an error left behind; nothing, after wait().
  ~TcpExchange() override {
    try {
      if (!awaited_.empty()) wait();
    } catch (const base::Error&) {
    }
  }

  void send(std::span<const std::byte> data, int to, int tag) override {
    mesh_.send(ranks_[static_cast<size_t>(to)], channel_, tag, data, here_);
  }
  void receive(std::span<std::byte> data, int from, int tag) override {
    awaited_.push_back(std::make_unique<tcp::Awaited>());
    tcp::Awaited& a = *awaited_.back();
    a.from = ranks_[static_cast<size_t>(from)];
    a.channel = channel_;
    a.tag = tag;
    a.data = data;
    mesh_.post(a);
  }
  void wait() override {
    std::vector<tcp::Awaited*> all;
    for (const auto& a : awaited_) all.push_back(a.get());
    const auto owned = std::move(awaited_);
    awaited_.clear();
    mesh_.wait(all, here_);
  }

 private:
  tcp::Mesh& mesh_;
  uint64_t channel_;
  std::span<const int> ranks_;
  std::string here_;
  std::vector<std::unique_ptr<tcp::Awaited>> awaited_;
};

class TcpGroup : public MessageGroup {
 public:
  TcpGroup(tcp::Mesh& mesh, std::string name, std::vector<int> world_ranks, int rank, RankFlight& flight,
           const Options& options)
      : MessageGroup(std::move(name), std::move(world_ranks), rank, flight, options),
        mesh_(mesh),
        channel_(group_hash(this->name(), this->world_ranks())) {}

  void abort(const std::string& why) override {
    Communicator::abort(why);
    mesh_.call_off();
  }

 private:
  std::unique_ptr<Exchange> exchange(std::string here) override {
    return std::make_unique<TcpExchange>(mesh_, channel_, world_ranks(), std::move(here));
  }

  tcp::Mesh& mesh_;
  uint64_t channel_;
};

std::vector<int> ranks_of(int size) {
  std::vector<int> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Returns when all of `ranks` have called it.
void meet(tcp::Mesh& mesh, std::span<const int> ranks, uint64_t channel, const std::string& here) {
  const int n = static_cast<int>(ranks.size());
  const int me = static_cast<int>(std::find(ranks.begin(), ranks.end(), mesh.rank()) - ranks.begin());
  for (int step = 1; step < n; step *= 2) {
    TcpExchange x(mesh, channel, ranks, here);
    x.receive({}, (me + n - step) % n, 0);
    x.send({}, (me + step) % n, 0);
    x.wait();
  }
}

class TcpEndpoint : public ProcessEndpoint {
 public:
  TcpEndpoint(tcp::Mesh& mesh, int size, Board& board, Watchdog::View view, const Options& options)
      : ProcessEndpoint(mesh.rank(), size, board, std::move(view), options), mesh_(mesh) {}

  void lose(int rank) { watchdog().lose(rank); }

 private:
  std::unique_ptr<Communicator> host_group(const std::string& name, std::span<const int> ranks,
                                           int member) override {
    return std::make_unique<TcpGroup>(mesh_, name, std::vector<int>(ranks.begin(), ranks.end()), member,
                                      flight(), options());
  }
  void meet_all() override {
    meet(mesh_, ranks_of(size()), kStartChannel, "the end of the run");
    mesh_.say_goodbye();
  }

  tcp::Mesh& mesh_;
};

// Known to the ranks of one machine and start alone: what a killed process left is never met again.
std::string memory_name(const tcp::Door& door, const tcp::Met& met) {
  const std::string& host = met.hosts[static_cast<size_t>(door.rank)];
  return "/pleat-" + base::Sha256().update(door.token).update(met.start).update(host).hex().substr(0, 32);
}

}  // namespace

void run_tcp_rank(const tcp::Door& door, const Options& options,
                  const std::function<void(Endpoint& endpoint, int num_here)>& fn, double shortest_start) {
  const double start_seconds = std::max(options.timeout_seconds, shortest_start);
  tcp::Met met = tcp::meet(door, start_seconds, options.called_off);
  tcp::Mirrors mirrors(met.hosts, door.rank);
  std::vector<int> near, far;
  for (int r = 0; r < door.size; ++r) (mirrors.is_far(r) ? far : near).push_back(r);

  // A rank may be lost before there is anybody to tell, and while the endpoint ends.
  std::mutex mutex;
  TcpEndpoint* told = nullptr;
  std::vector<int> lost;
  tcp::Mesh mesh(
      door.rank, std::move(met.peers),
      [&](int rank) {
        const std::lock_guard lock(mutex);
        lost.push_back(rank);
        if (told) told->lose(rank);
      },
      [&](int rank, std::span<const std::byte> note) { mirrors.take(rank, note); });

  const std::string starting =
      fmt::format("rank {} of {}, meeting the ranks of this machine", door.rank, door.size);
  const bool makes = near.front() == door.rank;
  const auto place = static_cast<size_t>(std::find(near.begin(), near.end(), door.rank) - near.begin());
  std::unique_ptr<tcp::SharedMemory> memory;
  const auto find = [&](tcp::SharedMemory::Make make) {
    memory = std::make_unique<tcp::SharedMemory>(memory_name(door, met), Board::bytes_for(near.size()), make);
  };
  if (makes) find(tcp::SharedMemory::Make::Yes);
  mesh.meet(near, kStartChannel + 1, start_seconds, starting, options.called_off);
  if (!makes) find(tcp::SharedMemory::Make::No);
  Board board(memory->data(), near, place);
  // Nobody may look for a process that has not said who it is.
  mesh.meet(near, kStartChannel + 2, start_seconds, starting, options.called_off);
  if (makes) memory->forget_name();

  tcp::Pulse pulse(mesh, board.own(), far);
  Watchdog::View view = board.view(door.size);
  for (const int r : far) view.flights[static_cast<size_t>(r)] = mirrors.flight(r);
  view.remark = [&mirrors, &mesh](int rank) {
    const std::string why = mesh.why_lost(rank);
    return why.empty() ? mirrors.silence(rank) : why;
  };
  view.tell = [&pulse] { pulse.last_beat(0.2); };
  view.silent = [&mirrors](int rank) { return mirrors.is_silent(rank); };
  TcpEndpoint endpoint(mesh, door.size, board, std::move(view), options);
  {
    const std::lock_guard lock(mutex);
    told = &endpoint;
    for (const int r : lost) endpoint.lose(r);
  }
  const auto stop_telling = [&] {
    const std::lock_guard lock(mutex);
    told = nullptr;
  };
  try {
    endpoint.run([&](Endpoint& e) { fn(e, static_cast<int>(near.size())); });
  } catch (...) {
    pulse.beat();
    stop_telling();
    throw;
  }
  stop_telling();
}

}  // namespace pleat::comm
