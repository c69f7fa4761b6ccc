#include "comm/mpi/mpi_world.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>

#include "base/error.h"
#include "comm/mpi/deadline.h"
#include "comm/mpi/mpi_group.h"
#include "comm/watchdog.h"

namespace pleat::comm {
namespace {

using mpi::require;

// In memory shared by the ranks of one machine, followed by their flight recorders.
struct BoardHeader {
  std::atomic<uint32_t> claim;
};
constexpr size_t kHeaderBytes = 64;

class Board {
 public:
  Board() {
    require(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node_),
            "MPI_Comm_split_type");
    int world_rank = 0, node_rank = 0, node_size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_rank(node_, &node_rank);
    MPI_Comm_size(node_, &node_size);
    members_.resize(static_cast<size_t>(node_size));
    require(MPI_Allgather(&world_rank, 1, MPI_INT, members_.data(), 1, MPI_INT, node_), "MPI_Allgather");
    const size_t bytes = node_rank == 0 ? kHeaderBytes + members_.size() * sizeof(RankFlight) + 64 : 0;
    void* own = nullptr;
    require(MPI_Win_allocate_shared(static_cast<MPI_Aint>(bytes), 1, MPI_INFO_NULL, node_, &own, &window_),
            "MPI_Win_allocate_shared");
    MPI_Aint size = 0;
    int unit = 0;
    void* base = nullptr;
    require(MPI_Win_shared_query(window_, 0, &size, &unit, &base), "MPI_Win_shared_query");
    auto* start = static_cast<std::byte*>(base);
    // The same address modulo a page in every process, so all make the same step.
    start += (64 - reinterpret_cast<uintptr_t>(start) % 64) % 64;
    header_ = reinterpret_cast<BoardHeader*>(start);
    flights_ = reinterpret_cast<RankFlight*>(start + kHeaderBytes);
    if (node_rank == 0) {
      new (header_) BoardHeader();
      for (size_t i = 0; i < members_.size(); ++i) new (flights_ + i) RankFlight();
    }
    require(MPI_Barrier(node_), "MPI_Barrier");
    own_ = flights_ + node_rank;
    own_->start(getpid());
    // Nobody may look for a process that has not said who it is.
    require(MPI_Barrier(node_), "MPI_Barrier");
  }
  // To be called by all when all went well; otherwise the memory ends with the process.
  void release() {
    MPI_Win_free(&window_);
    MPI_Comm_free(&node_);
  }

  RankFlight& own() { return *own_; }
  std::atomic<uint32_t>& claim() { return header_->claim; }
  Watchdog::View view(int world_rank, int world_size) {
    Watchdog::View view;
    view.flights.resize(static_cast<size_t>(world_size), nullptr);
    for (size_t i = 0; i < members_.size(); ++i)
      view.flights[static_cast<size_t>(members_[i])] = flights_ + i;
    view.own = {world_rank};
    view.processes = true;
    view.claim = &claim();
    return view;
  }

 private:
  MPI_Comm node_ = MPI_COMM_NULL;
  MPI_Win window_ = MPI_WIN_NULL;
  BoardHeader* header_ = nullptr;
  RankFlight *flights_ = nullptr, *own_ = nullptr;
  std::vector<int> members_;
};

class MpiEndpoint : public Endpoint {
 public:
  MpiEndpoint(mpi::Library& library, Board& board, const Options& options)
      : library_(library), board_(board), options_(options) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    const World said = read_world();
    if (said.rank != rank_ || said.size != size_)
      base::fail(
          "the environment ({}) says rank {} of {}, MPI says rank {} of {}: start with the launcher of this "
          "MPI library",
          said.launcher, said.rank, said.size, rank_, size_);
    watchdog_ = std::make_unique<Watchdog>(board.view(rank_, size_), options);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Communicator> group(const std::string& name, std::span<const int> ranks, Buffers buffers,
                                      void*) override {
    if (buffers == Buffers::Device)
      base::fail(
          "group '{}': processes over MPI move host memory only; on a GPU ranks are threads of one process "
          "(--ranks {})",
          name, size_);
    const auto found = std::find(ranks.begin(), ranks.end(), rank_);
    if (found == ranks.end())
      base::fail("group '{}' of ranks {} does not contain rank {}, which asks for it", name,
                 fmt::join(ranks, " "), rank_);
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i] < 0 || ranks[i] >= size_ || std::count(ranks.begin(), ranks.end(), ranks[i]) != 1)
        base::fail("group '{}' of ranks {}: rank {} is there twice or not in the world of {}", name,
                   fmt::join(ranks, " "), ranks[i], size_);
    }
    // Opening waits for all members, so it is recorded like a call; of a group of its own, whose calls are
    // not those of the opened one.
    watchdog_->add_group(name, ranks);
    MPI_Comm comm = MPI_COMM_NULL;
    recorded(name + " (opening)", "opening the group", ranks, [&] { comm = create(name, ranks); });
    return std::make_unique<mpi::GroupEnd>(library_, comm, name, std::vector<int>(ranks.begin(), ranks.end()),
                                           static_cast<int>(found - ranks.begin()), board_.own(), options_);
  }

  // Until all processes have come to the end of their work: from here on MPI itself waits, and nobody
  // watches.
  void close() {
    std::vector<int> all(static_cast<size_t>(size_));
    std::iota(all.begin(), all.end(), 0);
    recorded(kClosing, "end of the run", all, [&] {
      MPI_Request request;
      {
        const auto lock = library_.guard();
        require(MPI_Ibarrier(MPI_COMM_WORLD, &request), "MPI_Ibarrier");
      }
      mpi::Exchange x(library_, MPI_COMM_WORLD, all, "the end of the run");
      x.add(request);
      x.wait();
    });
  }

  // This rank ends in an error: the others are told, and the first to fail shows who was where, unless the
  // message alone says all there is to say.
  void fail(base::ExitCode code, const std::string& why) {
    board_.own().fail(why);
    if (code != base::ExitCode::Retry && code != base::ExitCode::Internal && !board_.own().failed_in_call())
      return;
    uint32_t free = 0;
    if (!board_.claim().compare_exchange_strong(free, 1)) return;
    const std::string table = watchdog_->table_of_failure(rank_);
    fmt::print(stderr, "pleat: rank {} failed: {}\n{}", rank_, why,
               table.empty() ? watchdog_->table() : table);
  }

 private:
  template <class Work>
  void recorded(const std::string& name, const char* stage, std::span<const int> ranks, Work work) {
    watchdog_->add_group(name, ranks);
    FlightEntry entry;
    entry.group_hash = group_hash(name, ranks);
    entry.operation = Operation::Barrier;
    std::memcpy(entry.group, name.data(), std::min(name.size(), sizeof entry.group - 1));
    std::strcpy(entry.stage, stage);
    const int slot = board_.own().begin(entry);
    work();
    board_.own().end(slot, FlightState::Done);
  }

  MPI_Comm create(const std::string& name, std::span<const int> ranks) {
    const auto lock = library_.guard();
    MPI_Group world = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
    require(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
    require(MPI_Group_incl(world, static_cast<int>(ranks.size()), ranks.data(), &members), "MPI_Group_incl");
    MPI_Comm comm = MPI_COMM_NULL;
    const int tag = static_cast<int>(group_hash(name, ranks) % 32749);
    require(MPI_Comm_create_group(MPI_COMM_WORLD, members, tag, &comm), "MPI_Comm_create_group for " + name);
    MPI_Group_free(&members);
    MPI_Group_free(&world);
    require(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    return comm;
  }

  mpi::Library& library_;
  Board& board_;
  Options options_;
  int rank_ = 0, size_ = 1;
  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace

bool mpi_is_built_in() { return true; }

std::string mpi_description() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string all(text, static_cast<size_t>(length));
  return all.substr(0, all.find(','));
}

void run_mpi_rank(const Options& options, const std::function<void(Endpoint&)>& fn) {
  const World said = read_world();
  const auto waiting = [&](const char* what) {
    return fmt::format("rank {} of {}, {}", said.rank, said.size, what);
  };
  mpi::Deadline deadline;  // first: it also watches over the end of the library
  // The library takes seconds of its own on a busy machine.
  constexpr double kShortestStart = 30, kShortestEnd = 10;
  const double timeout = options.timeout_seconds;
  if (timeout > 0) deadline.set(std::max(timeout, kShortestStart), waiting("starting MPI,"));
  mpi::Library library;
  Board board;
  deadline.clear();
  try {
    MpiEndpoint endpoint(library, board, options);
    try {
      fn(endpoint);
      endpoint.close();
      board.own().leave();
    } catch (const base::Error& e) {
      endpoint.fail(e.code(), e.what());
      throw;
    } catch (const std::exception& e) {
      endpoint.fail(base::ExitCode::Internal, e.what());
      throw;
    }
  } catch (const std::exception& e) {
    board.own().fail(e.what());
    library.abandon();
    throw;
  }
  if (timeout > 0) deadline.set(std::max(timeout, kShortestEnd), waiting("ending MPI,"));
  board.release();
}

}  // namespace pleat::comm
