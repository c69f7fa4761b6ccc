#include "runtime/crew.h"

#include <fmt/format.h>

#include <cstring>

#include "base/error.h"
#include "interpret/run/collectives.h"
#include "program/limits.h"

namespace pleat::runtime {

using program::Group;

static_assert(comm::kMaxWindowRanks == program::kMaxWindowRanks, "kernels and meetings take as many ranks");

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
  std::vector<Lane> missing;
  std::vector<comm::WantedGroup> wanted;
  for (const Lane& lane : lanes) {
    auto& slot = groups_[lane];
    if (slot && !enqueued) continue;
    PLEAT_CHECK(endpoint_, "a program for one rank talks to nobody");
    // Whoever ran programs on other streams may still hold it.
    if (slot) earlier_.emplace_back(lane, std::move(slot));
    const std::vector<int>& members = setup_.place.members[size_t(lane.first)];
    const std::string name = fmt::format("{}@{}:{}", name_of(lane.first), lane.second, members.front());
    if (lane.second.starts_with(interpret::kWindowLane)) {
      const std::string on = lane.second.substr(std::strlen(interpret::kWindowLane));
      slot = endpoint_->window_group(name, members, *windows_.back()->shared, buffers,
                                     enqueued ? stream_of(on) : nullptr);
      continue;
    }
    missing.push_back(lane);
    wanted.push_back({name, members, enqueued ? stream_of(lane.second) : nullptr});
  }
  if (!endpoint_) return;
  // Also with none: groups that meet on the device are opened by all ranks together.
  std::vector<std::unique_ptr<comm::Communicator>> made = endpoint_->groups(wanted, buffers);
  for (size_t i = 0; i < missing.size(); ++i) groups_[missing[i]] = std::move(made[i]);
}

std::vector<Crew::TakenMemory> Crew::device_memory_of_groups() const {
  std::vector<TakenMemory> out;
  if (!endpoint_) return out;
  if (const int64_t bytes = endpoint_->device_bytes(); bytes > 0) out.push_back({"all ranks", bytes});
  const auto add = [&](const Lane& lane, const comm::Communicator* group) {
    if (lane.second.starts_with(interpret::kWindowLane)) return;  // its memory is this program's own
    if (group && group->meeting() == program::Meeting::OnDevice)
      out.push_back({group->name(), group->device_bytes()});
  };
  for (const auto& [lane, group] : groups_) add(lane, group.get());
  for (const auto& [lane, group] : earlier_) add(lane, group.get());
  return out;
}

comm::Communicator* Crew::group(Group group, const std::string& lane) const {
  const auto found = groups_.find({group, lane});
  return found == groups_.end() ? nullptr : found->second.get();
}

model::RowExchange Crew::row_exchange(comm::Buffers buffers, bool by_name) const {
  const model::RowExchange wanted = setup_.mesh.exchange;
  const std::vector<int>& members = setup_.place.members[size_t(Group::Dispatch)];
  const bool asks = endpoint_ && wanted == model::RowExchange::Windows &&
                    setup_.mesh.size(Group::Dispatch) > 1 &&
                    setup_.mesh.dispatcher == model::Dispatcher::AllToAll;
  if (!asks) return wanted;
  const std::string why = endpoint_->why_no_windows(members, buffers);
  if (!any("start.windows", !why.empty())) return wanted;
  if (by_name)
    base::fail("parallel.exchange = \"windows\" cannot be: {}",
               why.empty() ? "ranks of another group do not reach each other's memory" : why);
  return model::RowExchange::Counted;
}

void Crew::share_windows(Group group, comm::Buffers buffers, const std::shared_ptr<std::byte>& memory) {
  PLEAT_CHECK(endpoint_, "a program for one rank has no windows");
  auto made = std::make_unique<GroupWindows>();
  made->group = group;
  made->shared = endpoint_->share_windows(setup_.place.members[size_t(group)], buffers, memory);
  for (std::byte* at : made->shared->begin) made->begin.push_back(comm::behind_header(at));
  windows_.push_back(std::move(made));
}

kernels::Windows Crew::windows(Group group) const {
  if (windows_.empty() || windows_.back()->group != group) return {};
  return {windows_.back()->begin, windows_.back()->shared->own};
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
