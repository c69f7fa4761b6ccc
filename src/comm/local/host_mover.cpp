#include <cstring>

#include "comm/local/mover.h"
#include "comm/reduce.h"

namespace pleat::comm::local {
namespace {

class HostMover final : public Mover {
 public:
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void reduce(std::span<const std::byte* const> ins, std::span<std::byte* const> outs, int64_t count,
              tensor::Dtype dtype, Reduce reduce) override {
    reduce_in_order(ins, outs, count, dtype, reduce);
  }
  void finish() override {}
};

}  // namespace

std::unique_ptr<Mover> host_mover() { return std::make_unique<HostMover>(); }

}  // namespace pleat::comm::local
