// How the exchanges of a run meet the other ranks: a fact of what carries them, not of the configuration.
// Communicators say it, passes place waits by it.
#pragma once

#include <cstdint>
#include <string_view>

namespace pleat::program {

// OnHost: a thread makes the call and is held until it is done (threads, MPI). OnDevice: the call takes its place on the
// lane's stream, like a kernel (NCCL).
enum class Meeting : uint8_t { OnHost, OnDevice };
constexpr std::string_view name_of(Meeting meeting) { return meeting == Meeting::OnHost ? "host" : "device"; }

}  // namespace pleat::program
