#include "base/error.h"
#include "comm/windows/windows.h"

namespace pleat::comm {
namespace {

class ThreadWindows final : public SharedWindows {
 public:
  ThreadWindows(Communicator& host, std::byte* memory) {
    own = host.rank();
    begin.resize(static_cast<size_t>(host.size()));
    host.all_gather("windows", std::as_bytes(std::span(&memory, 1)),
                    std::as_writable_bytes(std::span(begin)));
  }
};

}  // namespace

std::unique_ptr<SharedWindows> share_among_threads(Communicator& host, std::byte* memory) {
  return std::make_unique<ThreadWindows>(host, memory);
}

// Carriers without windows.
std::string Endpoint::why_no_windows(std::span<const int>, Buffers) {
  return "these ranks do not reach each other's memory";
}
std::unique_ptr<SharedWindows> Endpoint::share_windows(std::span<const int> ranks, Buffers buffers,
                                                       std::byte*) {
  base::fail("{}", why_no_windows(ranks, buffers));
}
std::unique_ptr<Communicator> Endpoint::window_group(const std::string&, std::span<const int> ranks,
                                                     SharedWindows&, Buffers buffers, void*) {
  base::fail("{}", why_no_windows(ranks, buffers));
}

}  // namespace pleat::comm
