#include "train/crew_peers.h"

namespace pleat::train {

std::vector<std::string> CrewPeers::gather(const std::string& text) {
  if (size() == 1) return {text};
  if (rank() != 0) {
    const int64_t length = static_cast<int64_t>(text.size());
    crew_.send_to_leader(stage_, std::as_bytes(std::span(&length, 1)));
    if (length > 0) crew_.send_to_leader(stage_, std::as_bytes(std::span(text)));
    return {};
  }
  std::vector<std::string> all = {text};
  for (int r = 1; r < size(); ++r) {
    int64_t length = 0;
    crew_.receive_from(stage_, r, std::as_writable_bytes(std::span(&length, 1)));
    std::string& said = all.emplace_back(static_cast<size_t>(length), '\0');
    if (length > 0) crew_.receive_from(stage_, r, std::as_writable_bytes(std::span(said)));
  }
  return all;
}

}  // namespace pleat::train
