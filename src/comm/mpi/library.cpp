#include "comm/mpi/library.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/error.h"

namespace pleat::comm::mpi {
namespace {

// MPI counts in int; a longer message goes in pieces of this size.
constexpr size_t kPiece = size_t{1} << 30;

std::string words_of(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<size_t>(length));
}

}  // namespace

void require(int code, const std::string& what) {
  if (code != MPI_SUCCESS) base::fail_with(base::ExitCode::Retry, "{}: {}", what, words_of(code));
}

Library::Library() {
  int initialized = 0, granted = 0;
  MPI_Initialized(&initialized);
  if (initialized != 0) base::fail("MPI was started twice in one process");
  require(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &granted), "MPI_Init_thread");
  if (granted < MPI_THREAD_SERIALIZED)
    base::fail(
        "this MPI library grants thread level {}; needed MPI_THREAD_SERIALIZED ({}) or MPI_THREAD_MULTIPLE",
        granted, MPI_THREAD_SERIALIZED);
  all_threads_ = granted == MPI_THREAD_MULTIPLE;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
}

Library::~Library() {
  if (!abandoned_) MPI_Finalize();
}

void Exchange::send(std::span<const std::byte> data, int to, int tag) {
  const auto lock = library_.guard();
  do {
    const auto piece = data.first(std::min(data.size(), kPiece));
    MPI_Request request;
    require(MPI_Isend(piece.data(), static_cast<int>(piece.size()), MPI_BYTE, to, tag, comm_, &request),
            here_);
    requests_.push_back(request);
    pending_.push_back({to, static_cast<int64_t>(piece.size()), false});
    data = data.subspan(piece.size());
  } while (!data.empty());
}

void Exchange::receive(std::span<std::byte> data, int from, int tag) {
  const auto lock = library_.guard();
  do {
    const auto piece = data.first(std::min(data.size(), kPiece));
    MPI_Request request;
    require(MPI_Irecv(piece.data(), static_cast<int>(piece.size()), MPI_BYTE, from, tag, comm_, &request),
            here_);
    requests_.push_back(request);
    pending_.push_back({from, static_cast<int64_t>(piece.size()), true});
    data = data.subspan(piece.size());
  } while (!data.empty());
}

void Exchange::add(MPI_Request request) {
  requests_.push_back(request);
  pending_.push_back({});
}

void Exchange::wait() {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  auto gives_up = Clock::time_point::max();
  std::string fault;
  const auto peer = [this](const Pending& p) {
    return p.peer < 0 ? std::string("a member") : fmt::format("rank {}", ranks_[static_cast<size_t>(p.peer)]);
  };
  const int total = static_cast<int>(requests_.size());
  std::vector<int> indices(requests_.size());
  std::vector<MPI_Status> statuses(requests_.size());
  int num_left = total;
  while (num_left > 0) {
    int num_done = 0;
    int code = MPI_SUCCESS;
    {
      const auto lock = library_.guard();
      code = MPI_Testsome(total, requests_.data(), &num_done, indices.data(), statuses.data());
    }
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) require(code, here_);
    if (num_done == MPI_UNDEFINED) break;
    for (int i = 0; i < num_done; ++i) {
      const Pending& p = pending_[static_cast<size_t>(indices[static_cast<size_t>(i)])];
      const MPI_Status& status = statuses[static_cast<size_t>(i)];
      int count = 0;
      if (code == MPI_ERR_IN_STATUS && status.MPI_ERROR != MPI_SUCCESS) {
        int error_class = 0;
        MPI_Error_class(status.MPI_ERROR, &error_class);
        fault = error_class == MPI_ERR_TRUNCATE
                    ? fmt::format("{} sent more than the {} bytes awaited", peer(p), p.bytes)
                    : fmt::format("{}: {}", peer(p), words_of(status.MPI_ERROR));
      } else if (p.receives && MPI_Get_count(&status, MPI_BYTE, &count) == MPI_SUCCESS && count != p.bytes) {
        fault = fmt::format("{} sent {} bytes, {} bytes awaited", peer(p), count, p.bytes);
      }
    }
    num_left -= num_done;
    const auto now = Clock::now();
    if (!fault.empty()) {
      // The rest of a call that went wrong may never come; the memory is given up after a moment.
      if (gives_up == Clock::time_point::max()) gives_up = now + std::chrono::milliseconds(200);
      if (now > gives_up) break;
    } else if (num_left > 0 && library_.is_called_off()) {
      base::fail_with(base::ExitCode::Retry, "{}: given up, another thread of this rank has failed", here_);
    }
    if (num_done == 0) {
      if (now - start < std::chrono::microseconds(200))
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  requests_.clear();
  pending_.clear();
  if (!fault.empty()) base::fail("{}: {}", here_, fault);
}

}  // namespace pleat::comm::mpi
