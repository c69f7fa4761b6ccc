// Collective and transfer stages: each is one call of a communicator. What moves where is in
// program/ops.def; here bytes and counts are read off the arguments.
#pragma once

#include <functional>
#include <string>

#include "comm/communicator.h"
#include "kernels/invocation.h"
#include "program/program.h"

namespace pleat::interpret {

// Ranks of a group: counts of all of them lie on the stack, since a step allocates nothing.
constexpr int kMaxGroupRanks = 1024;

// The lane of a group's messages, for those that ask for groups: one for all, since both ends lie on different lanes.
inline constexpr const char* kMessageLane = "messages";

// This rank's end of a group for the stages of one lane; lanes must not share one, because each runs its
// collectives in an order of its own. The result outlives the executor. Called once per (group, lane).
struct FindGroup {
  std::function<comm::Communicator*(program::Group group, const std::string& lane)> find;
  // The windows of a group's ranks; there as long as the executor.
  std::function<kernels::Windows(program::Group group)> windows;

  explicit operator bool() const { return find != nullptr; }
  comm::Communicator* operator()(program::Group group, const std::string& lane) const {
    return find(group, lane);
  }
};
// Of a stage that stores; throws where the run has none.
kernels::Windows windows_of(const program::Stage& stage, const FindGroup& groups);

// The pseudo-lane of meetings about windows on a lane: their groups are the windows' own, on that lane's stream.
inline constexpr const char* kWindowLane = "windows@";
// Of a meeting, the lane its group is asked for by; other stages have the name of their own.
std::string group_lane(const program::Program& program, const program::Stage& stage);

// What a collective does itself with the memory its arguments lie in; the rest is the communicator's work.
class ArgumentMemory {
 public:
  virtual ~ArgumentMemory() = default;
  virtual void fill(std::byte* at, int byte, int64_t bytes) = 0;
};
class HostMemory final : public ArgumentMemory {
 public:
  void fill(std::byte* at, int byte, int64_t bytes) override;
};

using Collective = void (*)(comm::Communicator& group, const program::Stage& stage,
                            const kernels::Invocation& call, const std::string& name, ArgumentMemory& memory);

// A stage that meets other ranks with everything it needs to do so.
struct BoundCollective {
  Collective run = nullptr;  // nullptr: none
  comm::Communicator* group = nullptr;
  std::string name;  // of the stage, for who waits for it

  void operator()(const program::Stage& stage, const kernels::Invocation& call,
                  ArgumentMemory& memory) const {
    run(*group, stage, call, name, memory);
  }
};
// Of a stage that is an exchange. Checks what can be known before a step runs; throws naming it.
BoundCollective bind_collective(const program::Program& program, const program::Stage& stage,
                                const kernels::Invocation& call, const FindGroup& groups);

}  // namespace pleat::interpret
