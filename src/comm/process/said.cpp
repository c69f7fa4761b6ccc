#include "comm/process/said.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "base/hash.h"

namespace pleat::comm {
namespace {

// Each place holds a digest and who said it, written in one go: 48 bits and 16. Texts that differ beyond this many are
// said by everybody.
constexpr size_t kPlaces = 256;
using Places = std::array<std::atomic<uint64_t>, kPlaces>;
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(Places) == kPlaces * sizeof(uint64_t));
constexpr int kRankBits = 16;

// A descriptor of anything without them is somebody else's, and left alone.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

bool is_sealed(int descriptor) {
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  return seals >= 0 && (seals & kSeals) == kSeals;
}

// As `pleat launch` sets them; -1: it has not.
int number_in(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return -1;
  int value = -1;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  return error == std::errc() && stop == end ? value : -1;
}

}  // namespace

Said::Said() {
  const int made = ::memfd_create("pleat-said", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (made < 0) return;
  if (::ftruncate(made, sizeof(Places)) == 0 && ::fcntl(made, F_ADD_SEALS, kSeals) == 0)
    descriptor_ = made;
  else
    ::close(made);
}

Said::~Said() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::optional<int> said_before(int descriptor, const std::string& text, int rank) {
  struct stat about {};
  if (descriptor < 0 || rank < 0 || rank >= 1 << kRankBits || !is_sealed(descriptor) ||
      ::fstat(descriptor, &about) != 0 || about.st_size != static_cast<off_t>(sizeof(Places)))
    return {};
  void* memory = ::mmap(nullptr, sizeof(Places), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) return {};
  const base::Sha256Digest digest = base::sha256(text);
  uint64_t of_text = 0;
  std::memcpy(&of_text, digest.data(), sizeof of_text);
  of_text >>= kRankBits;
  if (of_text == 0) of_text = 1;  // an empty place is 0
  const uint64_t mine = of_text << kRankBits | static_cast<uint64_t>(rank);
  std::optional<int> first;
  for (std::atomic<uint64_t>& place : *static_cast<Places*>(memory)) {
    uint64_t there = 0;
    if (place.compare_exchange_strong(there, mine)) break;
    if (there >> kRankBits != of_text) continue;
    first = static_cast<int>(there & ((1 << kRankBits) - 1));
    break;
  }
  ::munmap(memory, sizeof(Places));
  return first;
}

std::string said_once(const std::string& text) {
  const int rank = number_in("RANK");
  const std::optional<int> first = said_before(number_in(kSaidVariable), text, rank);
  if (!first || *first == rank) return text;
  return fmt::format("rank {} ends with the same error as rank {}, which says it", rank, *first);
}

}  // namespace pleat::comm
