// How two processes of one job know each other: magic, version, and a proof that both hold the job's token, which
// itself never travels. Whoever cannot prove it is a stranger.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/host_name.h"
#include "comm/tcp/socket.h"

namespace pleat::comm::tcp {

inline constexpr std::array<char, 8> kMagic = {'P', 'L', 'E', 'A', 'T', 'C', 'O', 'M'};
inline constexpr uint32_t kVersion = 3;

using Nonce = std::array<std::byte, 16>;
using Proof = std::array<std::byte, 32>;
Nonce make_nonce();

// What the side that accepted says first.
struct Greeting {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion;
  uint32_t rank = 0;  // who accepts
  Nonce nonce{};
};

// What the side that connected answers.
struct Hello {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion;
  uint32_t rank = 0, size = 0;
  uint32_t port = 0;   // where this rank accepts others
  char host[96] = {};  // names the machine: equal on ranks that share memory
  Nonce nonce{};
  Proof proof{};
};

// What the side that accepted says to that.
struct Answer {
  uint32_t accepted = 0;
  char why[124] = {};
  Proof proof{};
};

Proof prove(const std::string& token, const Greeting& greeting, Hello hello);   // for Hello::proof
Proof prove_back(const std::string& token, const Hello& hello, Answer answer);  // for Answer::proof
bool equal(const Proof& a, const Proof& b);

// What Hello::host is made of, also for those who share windows.
using base::host_name;

// The connecting side: until accepted. Throws (Retry) with the reason; `here` says who tries what.
void introduce(const Socket& socket, Hello hello, uint32_t expected, const std::string& token,
               const Until& until, const std::string& here);

}  // namespace pleat::comm::tcp
