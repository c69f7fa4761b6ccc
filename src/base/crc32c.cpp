#include "base/crc32c.h"

#include <array>
#include <cstring>

#ifdef __SSE4_2__
#include <nmmintrin.h>
#endif

namespace pleat::base {

namespace {

constexpr std::array<uint32_t, 256> make_table() {
  constexpr uint32_t kReversedPolynomial = 0x82F63B78u;
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kReversedPolynomial : 0);
    table[i] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = make_table();

}  // namespace

uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t before) {
  uint32_t crc = ~before;
  for (std::byte b : bytes) crc = kTable[(crc ^ std::to_integer<uint32_t>(b)) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

#ifdef __SSE4_2__
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
  uint64_t crc = static_cast<uint32_t>(~before);
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; at += 8, left -= 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    crc = _mm_crc32_u64(crc, word);
  }
  auto crc32 = static_cast<uint32_t>(crc);
  for (; left > 0; ++at, --left) crc32 = _mm_crc32_u8(crc32, std::to_integer<uint8_t>(*at));
  return ~crc32;
}
#else
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) { return crc32c_portable(bytes, before); }
#endif

}  // namespace pleat::base
