// How the processes of a run find each other without a library: rank 0 listens where all know it, the others come, and
// each is told where everybody else is. Then every two of them have one connection.
//
// Strangers (wrong magic, version, token) are turned away and change nothing. Whoever is missing at the deadline is
// named.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/tcp/handshake.h"
#include "comm/tcp/socket.h"

namespace pleat::comm::tcp {

struct Door {
  int rank = 0, size = 1;
  std::string address;  // of rank 0
  int port = 0;
  std::string token;   // what all ranks of the job know and nobody else
  int listening = -1;  // rank 0: a descriptor that listens at the port already; -1: none
};

struct Met {
  std::vector<Socket> peers;       // by rank; none for this one
  std::vector<std::string> hosts;  // by rank: equal where ranks share a machine
  Nonce start{};                   // the same on all ranks, another at each start
};

// Throws base::Error (Retry), naming who is missing or cannot be reached, at the latest after `seconds`; before, and
// saying so, within a second of `called_off` becoming true.
Met meet(const Door& door, double seconds, const std::function<bool()>& called_off = {});

}  // namespace pleat::comm::tcp
