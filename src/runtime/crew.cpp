#include "runtime/crew.h"

#include <fmt/format.h>

#include "base/error.h"

namespace pleat::runtime {

using program::Group;

Crew::Crew(const config::Config& config)
    : setup_(one_rank(config)), num_threads_(static_cast<int>(config.device.threads)) {}

Crew::Crew(const config::Config& config, comm::Endpoint& endpoint, int num_threads)
    : Crew(rank_setup(config, endpoint.size(), endpoint.rank()), endpoint, num_threads) {}

Crew::Crew(RankSetup setup, comm::Endpoint& endpoint, int num_threads)
    : setup_(std::move(setup)), num_threads_(num_threads) {
  if (endpoint.size() == 1) return;
  endpoint_ = &endpoint;
  world_ = endpoint.group("run", setup_.place.members[size_t(Group::World)]);
  const std::vector<int>& pipeline = setup_.place.members[size_t(Group::Pipeline)];
  if (pipeline.size() > 1) pipeline_ = endpoint.group(fmt::format("stages:{}", pipeline.front()), pipeline);
}

void Crew::open_groups(const std::set<Lane>& lanes, comm::Buffers buffers,
                       const std::function<void*(const std::string& lane)>& stream_of) {
  const bool enqueued = meeting(buffers) == program::Meeting::OnDevice;
  for (const Lane& lane : lanes) {
    auto& slot = groups_[lane];
    if (slot && !enqueued) continue;
    PLEAT_CHECK(endpoint_, "a program for one rank talks to nobody");
    // Whoever ran programs on other streams may still hold it.
    if (slot) earlier_.push_back(std::move(slot));
    const std::vector<int>& members = setup_.place.members[size_t(lane.first)];
    slot = endpoint_->group(fmt::format("{}@{}:{}", name_of(lane.first), lane.second, members.front()),
                            members, buffers, enqueued ? stream_of(lane.second) : nullptr);
  }
}

comm::Communicator* Crew::group(Group group, const std::string& lane) const {
  const auto found = groups_.find({group, lane});
  return found == groups_.end() ? nullptr : found->second.get();
}

void Crew::sum(const char* stage, std::span<int64_t> values) const {
  if (world_) world_->all_reduce(stage, values, comm::Reduce::Sum);
}

void Crew::sum(const char* stage, std::span<double> values) const {
  if (world_) world_->all_reduce(stage, values, comm::Reduce::Sum);
}

void Crew::sum_stages(const char* stage, std::span<double> values) const {
  if (pipeline_) pipeline_->all_reduce(stage, values, comm::Reduce::Sum);
}

int64_t Crew::smallest(const char* stage, int64_t value) const {
  if (world_) world_->all_reduce(stage, std::span(&value, 1), comm::Reduce::Min);
  return value;
}

bool Crew::any(const char* stage, bool mine) const {
  int64_t count = mine;
  sum(stage, std::span(&count, 1));
  return count > 0;
}

void Crew::tell(const char* stage, std::span<int64_t> values, int from) const {
  if (world_) world_->broadcast(stage, std::as_writable_bytes(values), from);
}

std::string Crew::tell(const char* stage, const std::string& text, int from) const {
  if (!world_) return text;
  int64_t length = static_cast<int64_t>(text.size());
  tell(stage, std::span(&length, 1), from);
  std::string out = text;
  out.resize(static_cast<size_t>(length));
  world_->broadcast(stage, std::as_writable_bytes(std::span(out)), from);
  return out;
}

void Crew::wait_for_all(const char* stage) const {
  if (world_) world_->barrier(stage);
}

void Crew::send_to_leader(const char* stage, std::span<const std::byte> bytes) const {
  world_->send(stage, 0, 0, bytes);
}

void Crew::receive_from(const char* stage, int rank, std::span<std::byte> bytes) const {
  world_->receive(stage, rank, 0, bytes);
}

}  // namespace pleat::runtime
