// The CPU's worker threads. Work is split into tiles by shape alone; which thread runs a tile, and how many
// threads there are, must never change a bit of the result.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace pleat::device {

// A reference to a callable, so that a parallel loop allocates nothing.
class TileFunction {
 public:
  template <class F>
  TileFunction(const F& f)  // NOLINT: implicit on purpose
      : object_(&f),
        call_([](const void* object, int64_t tile) { (*static_cast<const F*>(object))(tile); }) {}
  void operator()(int64_t tile) const { call_(object_, tile); }

 private:
  const void* object_;
  void (*call_)(const void*, int64_t);
};

class Pool {
 public:
  explicit Pool(int num_threads);  // num_threads - 1 workers; the caller is the last one
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int num_threads() const;
  // Runs body(0) .. body(num_tiles - 1), each once, in any order, and returns when all are done. May be
  // called from several threads at a time; calls are served one after the other. Not re-entrant. body must
  // not throw.
  void for_each_tile(int64_t num_tiles, TileFunction body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pleat::device
