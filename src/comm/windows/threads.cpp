#include <numeric>

#include "base/error.h"
#include "comm/windows/windows.h"

namespace pleat::comm {
namespace {

class ThreadWindows final : public SharedWindows {
 public:
  ThreadWindows(Communicator& host, const Memory& memory) {
    own = host.rank();
    const auto n = static_cast<size_t>(host.size());
    // Every rank gets a handle of its own, which is its to delete once the call got through: it does on all ranks or on
    // none.
    std::vector<std::unique_ptr<Memory>> given;
    std::vector<Memory*> sent, came(n);
    for (size_t r = 0; r < n; ++r) sent.push_back(given.emplace_back(std::make_unique<Memory>(memory)).get());
    const std::vector<int64_t> counts(n, sizeof(Memory*));
    std::vector<int64_t> offsets(n);
    std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), int64_t{0});
    const Parts parts{counts, offsets};
    peers_.reserve(n), begin.reserve(n);
    host.all_to_all_v("windows", std::as_bytes(std::span(sent)), parts,
                      std::as_writable_bytes(std::span(came)), parts);
    for (std::unique_ptr<Memory>& handle : given) static_cast<void>(handle.release());
    for (Memory* handle : came) {
      peers_.push_back(std::move(*std::unique_ptr<Memory>(handle)));
      begin.push_back(peers_.back().get());
    }
  }

 private:
  std::vector<Memory> peers_;  // a rank that failed may be gone while the others still store
};

}  // namespace

std::unique_ptr<SharedWindows> share_among_threads(Communicator& host, const SharedWindows::Memory& memory) {
  return std::make_unique<ThreadWindows>(host, memory);
}

// Carriers without windows.
std::string Endpoint::why_no_windows(std::span<const int>, Buffers) {
  return "these ranks do not reach each other's memory";
}
std::unique_ptr<SharedWindows> Endpoint::share_windows(std::span<const int> ranks, Buffers buffers,
                                                       const std::shared_ptr<std::byte>&) {
  base::fail("{}", why_no_windows(ranks, buffers));
}
std::unique_ptr<Communicator> Endpoint::window_group(const std::string&, std::span<const int> ranks,
                                                     SharedWindows&, Buffers buffers, void*) {
  base::fail("{}", why_no_windows(ranks, buffers));
}

}  // namespace pleat::comm
