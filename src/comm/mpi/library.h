// The MPI library as the rest of comm/mpi uses it: only calls that return at once, so that a waiting thread
// sleeps instead of burning a core the other ranks need, and a library without full thread support can be
// used from several threads under one lock.
#pragma once

#include <mpi.h>

#include <atomic>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "comm/messages/exchange.h"

namespace pleat::comm::mpi {

class Library {
 public:
  Library();   // MPI_Init_thread
  ~Library();  // MPI_Finalize, unless abandoned
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  void abandon() { abandoned_ = true; }  // the process is about to end in an error
  // A thread of this rank has failed: waiting threads give up.
  void call_off() { called_off_.store(true, std::memory_order_release); }
  bool is_called_off() const { return called_off_.load(std::memory_order_acquire); }

  // Held around every MPI call; locks only where the library asks for it.
  std::unique_lock<std::mutex> guard() {
    return all_threads_ ? std::unique_lock<std::mutex>() : std::unique_lock(mutex_);
  }

 private:
  std::mutex mutex_;
  bool all_threads_ = false, abandoned_ = false;
  std::atomic<bool> called_off_{false};
};

// Throws base::Error (Retry) with MPI's own words; `what` says what was tried.
void require(int code, const std::string& what);

class Exchange final : public comm::Exchange {
 public:
  // `ranks` names the members of `comm` to people, by their place in the world.
  Exchange(Library& library, MPI_Comm comm, std::span<const int> ranks, std::string here)
      : library_(library), comm_(comm), ranks_(ranks), here_(std::move(here)) {}

  void send(std::span<const std::byte> data, int to, int tag) override;
  void receive(std::span<std::byte> data, int from, int tag) override;
  void add(MPI_Request request);  // a collective of the library
  // Of an exchange that was called off or went wrong the memory is only given up: the process has to end without
  // another call of the library.
  void wait() override;

 private:
  struct Pending {
    int peer = -1;
    int64_t bytes = 0;
    bool receives = false;
  };
  Library& library_;
  MPI_Comm comm_;
  std::span<const int> ranks_;
  std::string here_;
  std::vector<MPI_Request> requests_;
  std::vector<Pending> pending_;
};

}  // namespace pleat::comm::mpi
