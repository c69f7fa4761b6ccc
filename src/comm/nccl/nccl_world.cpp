#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "comm/nccl/group_end.h"
#include "comm/nccl/library.h"
#include "comm/nccl/nccl_group.h"

namespace pleat::comm {
namespace {

static_assert(sizeof(ncclUniqueId) == sizeof(NcclId));

enum class NcclStart : bool { InBackground, Blocking };

ncclConfig_t nccl_config(NcclStart start) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = start == NcclStart::Blocking ? 1 : 0;
  config.splitShare = 0;
  return config;
}

class NcclWorldEnd final : public NcclWorld {
 public:
  NcclWorldEnd(const NcclId& id, int rank, int size) : rank_(rank), size_(size) {
    ncclUniqueId unique;
    std::memcpy(&unique, id.data(), sizeof unique);
    const int64_t before = nccl::free_device_bytes();
    ncclConfig_t config = nccl_config(NcclStart::InBackground);
    const std::string opening = fmt::format("starting NCCL as rank {} of {}", rank, size);
    const ncclResult_t begun = ncclCommInitRankConfig(&comm_, size, unique, rank, &config);
    if (const ncclResult_t result = begun == ncclInProgress ? nccl::settled(comm_, begun) : begun;
        result != ncclSuccess) {
      end();
      nccl::require(result, opening);
    }
    taken_ = std::max<int64_t>(0, before - nccl::free_device_bytes());
  }
  ~NcclWorldEnd() override { end(); }

  std::unique_ptr<Communicator> split(const Group& group, RankFlight& flight, const Inject& inject,
                                      std::unique_ptr<Communicator> host) override {
    const int64_t before = nccl::free_device_bytes();
    // The color tells the groups of one split apart: no two of them have the same first member.
    const ncclComm_t made = split(*std::min_element(group.world_ranks.begin(), group.world_ranks.end()),
                                  group.rank, "opening group '" + group.name + "'");
    PLEAT_CHECK(made, "the split of group '{}' made nothing", group.name);
    const int64_t taken = std::max<int64_t>(0, before - nccl::free_device_bytes());
    return nccl::make_group_end(group, made, taken, flight, inject, std::move(host));
  }

  // As a group of its own, which ends at once: without a color nothing would tell when the split is over, and another
  // must not begin before.
  void stand_aside() override {
    const ncclComm_t alone = split(size_ + rank_, 0, "standing aside while groups are opened");
    if (alone) ncclCommAbort(alone);
  }

  int64_t device_bytes() const override { return taken_; }

 private:
  ncclComm_t split(int color, int key, const std::string& what) {
    // The library writes it when the split is done, maybe after this has thrown: it may not lie on the stack.
    made_ = nullptr;
    ncclConfig_t config = nccl_config(NcclStart::Blocking);
    // This communicator does not block, so the split goes on in the background and is its affair until it is done.
    ncclResult_t result = nccl::settled(comm_, ncclCommSplit(comm_, color, key, &made_, &config));
    // Libraries differ in whether this communicator tells of it: the new one is there when it is done, and no earlier.
    while (result == ncclSuccess && !__atomic_load_n(&made_, __ATOMIC_ACQUIRE)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      result = nccl::settled(comm_, ncclInProgress);
    }
    if (result == ncclSuccess && made_) result = nccl::settled(made_, ncclInProgress);
    if (result != ncclSuccess) {
      end();
      nccl::require(result, what);
    }
    return made_;
  }

  void end() {
    if (comm_) ncclCommAbort(comm_);
    comm_ = nullptr;
  }

  int rank_, size_;
  ncclComm_t comm_ = nullptr, made_ = nullptr;
  int64_t taken_ = 0;
};

}  // namespace

bool nccl_is_built_in() { return true; }

int nccl_version() {
  int version = 0;
  nccl::require(ncclGetVersion(&version), "ncclGetVersion");
  return version;
}

std::string nccl_description() {
  const int version = nccl_version();
  return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

NcclId make_nccl_id() {
  ncclUniqueId unique;
  nccl::require(ncclGetUniqueId(&unique), "ncclGetUniqueId");
  NcclId id;
  std::memcpy(id.data(), &unique, sizeof unique);
  return id;
}

std::unique_ptr<NcclWorld> make_nccl_world(const NcclId& id, int rank, int size) {
  return std::make_unique<NcclWorldEnd>(id, rank, size);
}

}  // namespace pleat::comm
