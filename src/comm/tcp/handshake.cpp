#include "comm/tcp/handshake.h"

#include <sys/random.h>

#include <algorithm>
#include <type_traits>

#include "base/error.h"
#include "base/hash.h"
#include "base/terminal_text.h"

namespace pleat::comm::tcp {
namespace {

static_assert(std::is_trivially_copyable_v<Greeting> && sizeof(Greeting) == 32);
static_assert(std::is_trivially_copyable_v<Hello> && sizeof(Hello) == 168);
static_assert(std::is_trivially_copyable_v<Answer> && sizeof(Answer) == 160);

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

// HMAC with SHA-256 (RFC 2104).
Proof keyed_digest(const std::string& token, std::span<const std::byte> a, std::span<const std::byte> b) {
  std::array<std::byte, 64> key{};
  const base::Sha256Digest hashed = base::sha256(token);
  std::copy(hashed.begin(), hashed.end(), key.begin());
  std::array<std::byte, 64> inner = key, outer = key;
  for (std::byte& x : inner) x ^= std::byte{0x36};
  for (std::byte& x : outer) x ^= std::byte{0x5c};
  const base::Sha256Digest first = base::Sha256().update(inner).update(a).update(b).digest();
  return base::Sha256().update(outer).update(first).digest();
}

// What somebody unknown says, as a part of one line of ours.
std::string one_line(const char* text) {
  std::string line;
  for (const char c : base::terminal_text(text)) {
    if (c == '\n' || c == '\r' || c == '\t')
      line += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    else
      line += c;
  }
  return line;
}

}  // namespace

Nonce make_nonce() {
  Nonce nonce;
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size()))
    base::fail_with(base::ExitCode::Retry, "the system gives no random numbers");
  return nonce;
}

Proof prove(const std::string& token, const Greeting& greeting, Hello hello) {
  hello.proof = {};
  return keyed_digest(token, bytes_of(greeting), bytes_of(hello));
}

Proof prove_back(const std::string& token, const Hello& hello, Answer answer) {
  answer.proof = {};
  return keyed_digest(token, bytes_of(hello), bytes_of(answer));
}

bool equal(const Proof& a, const Proof& b) {
  std::byte difference{};
  for (size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == std::byte{};
}

void introduce(const Socket& socket, Hello hello, uint32_t expected, const std::string& token,
               const Until& until, const std::string& here) {
  std::string why;
  const auto fail = [&](const std::string& what) {
    base::fail_with(base::ExitCode::Retry, "{}: {}", here, what);
  };
  Greeting greeting;
  greeting.magic = {};
  if (!read_all(socket, std::as_writable_bytes(std::span(&greeting, 1)), until, why)) fail(why);
  if (greeting.magic != kMagic) fail("who listens there is no rank of a run");
  if (greeting.version != kVersion)
    fail(fmt::format("it speaks version {}, this program {}: all ranks need one build", greeting.version,
                     kVersion));
  hello.nonce = make_nonce();
  hello.proof = prove(token, greeting, hello);
  if (!write_all(socket, bytes_of(hello), until, why)) fail(why);
  Answer answer;
  if (!read_all(socket, std::as_writable_bytes(std::span(&answer, 1)), until, why)) fail(why);
  answer.why[sizeof answer.why - 1] = 0;
  if (answer.accepted == 0) fail(one_line(answer.why));
  if (!equal(answer.proof, prove_back(token, hello, answer)))
    fail("who listens there does not hold this job's token");
  if (greeting.rank != expected) fail(fmt::format("rank {} listens there", greeting.rank));
}

}  // namespace pleat::comm::tcp
