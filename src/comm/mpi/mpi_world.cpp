#include "comm/mpi/mpi_world.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

#include "base/error.h"
#include "comm/mpi/deadline.h"
#include "comm/mpi/mpi_group.h"
#include "comm/process/process_endpoint.h"

namespace pleat::comm {
namespace {

using mpi::require;

// Memory the ranks of one machine share.
class Node {
 public:
  Node() {
    require(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node_),
            "MPI_Comm_split_type");
    int world_rank = 0, node_rank = 0, node_size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_rank(node_, &node_rank);
    MPI_Comm_size(node_, &node_size);
    std::vector<int> members(static_cast<size_t>(node_size));
    require(MPI_Allgather(&world_rank, 1, MPI_INT, members.data(), 1, MPI_INT, node_), "MPI_Allgather");
    const size_t bytes = node_rank == 0 ? Board::bytes_for(members.size()) : 0;
    void* own = nullptr;
    require(MPI_Win_allocate_shared(static_cast<MPI_Aint>(bytes), 1, MPI_INFO_NULL, node_, &own, &window_),
            "MPI_Win_allocate_shared");
    MPI_Aint size = 0;
    int unit = 0;
    void* base = nullptr;
    require(MPI_Win_shared_query(window_, 0, &size, &unit, &base), "MPI_Win_shared_query");
    if (node_rank == 0) std::memset(base, 0, bytes);
    require(MPI_Barrier(node_), "MPI_Barrier");
    board_ = std::make_unique<Board>(base, std::move(members), static_cast<size_t>(node_rank));
    // Nobody may look for a process that has not said who it is.
    require(MPI_Barrier(node_), "MPI_Barrier");
  }
  // To be called by all when all went well; otherwise the memory ends with the process.
  void release() {
    MPI_Win_free(&window_);
    MPI_Comm_free(&node_);
  }
  Board& board() { return *board_; }

 private:
  MPI_Comm node_ = MPI_COMM_NULL;
  MPI_Win window_ = MPI_WIN_NULL;
  std::unique_ptr<Board> board_;
};

int rank_in_world() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int size_of_world() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

class MpiEndpoint : public ProcessEndpoint {
 public:
  MpiEndpoint(mpi::Library& library, Board& board, const Options& options)
      : ProcessEndpoint(rank_in_world(), size_of_world(), board, board.view(size_of_world()), options),
        library_(library) {
    const World said = read_world();
    if (said.rank != rank() || said.size != size())
      base::fail(
          "the environment ({}) says rank {} of {}, MPI says rank {} of {}: start with the launcher of this "
          "MPI library",
          said.launcher, said.rank, said.size, rank(), size());
  }

 private:
  std::unique_ptr<Communicator> host_group(const std::string& name, std::span<const int> ranks,
                                           int member) override {
    return std::make_unique<mpi::GroupEnd>(library_, create(name, ranks), name,
                                           std::vector<int>(ranks.begin(), ranks.end()), member, flight(),
                                           options());
  }

  // From here on MPI itself waits, and nobody watches.
  void meet_all() override {
    std::vector<int> all(static_cast<size_t>(size()));
    std::iota(all.begin(), all.end(), 0);
    MPI_Request request;
    {
      const auto lock = library_.guard();
      require(MPI_Ibarrier(MPI_COMM_WORLD, &request), "MPI_Ibarrier");
    }
    mpi::Exchange x(library_, MPI_COMM_WORLD, all, "the end of the run");
    x.add(request);
    x.wait();
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
  Node node;
  deadline.clear();
  try {
    MpiEndpoint(library, node.board(), options).run(fn);
  } catch (const std::exception& e) {
    node.board().own().fail(e.what());
    library.abandon();
    throw;
  }
  if (timeout > 0) deadline.set(std::max(timeout, kShortestEnd), waiting("ending MPI,"));
  node.release();
}

}  // namespace pleat::comm
