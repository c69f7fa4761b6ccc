#include "comm/same_call.h"

#include "base/error.h"
#include "comm/messages/signature_bytes.h"

namespace pleat::comm {

void require_same_call(Communicator& host, const Communicator& group, const Call& call) {
  const auto n = static_cast<size_t>(group.size());
  const std::vector<std::byte> mine = to_bytes(signature_of(call), group.size());
  std::vector<std::byte> all(n * mine.size());
  host.all_gather("comparing calls", mine, all);
  std::vector<Signature> signatures;
  for (size_t r = 0; r < n; ++r) {
    const auto* begin = all.data() + r * mine.size();
    signatures.push_back(from_bytes(std::vector<std::byte>(begin, begin + mine.size())));
  }
  std::vector<const Signature*> by_rank;
  for (const Signature& s : signatures) by_rank.push_back(&s);
  const std::string difference =
      first_difference(by_rank, group.world_ranks(), group.name(), CompareStage::Yes);
  if (!difference.empty()) base::fail("{}", difference);
}

}  // namespace pleat::comm
