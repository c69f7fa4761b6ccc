// CRC-32C (Castagnoli): the cheap guard of one block of a file. Hardware instruction where the build allows
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace pleat::base {

// crc32c(b, crc32c(a)) is the checksum of a followed by b.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);
// Same value without the instruction; what crc32c is on machines that lack it.
uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace pleat::base
