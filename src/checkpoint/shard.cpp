#include "checkpoint/shard.h"

#include <algorithm>
#include <cstring>

#include "base/crc32c.h"
#include "base/error.h"

namespace pleat::checkpoint {

namespace {

constexpr std::string_view kShardMagic = "PLEATSHD";
constexpr uint32_t kBlockMagic = 0x4b4c4250;  // "PBLK"

template <class Int>
void put(std::span<std::byte> out, size_t at, Int value) {
  for (size_t i = 0; i < sizeof(Int); ++i)
    out[at + i] = static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i));
}

uint64_t get(std::span<const std::byte> in, size_t at, size_t count) {
  uint64_t value = 0;
  for (size_t i = 0; i < count; ++i) value |= std::to_integer<uint64_t>(in[at + i]) << (8 * i);
  return value;
}

struct Field {
  const char* name;
  size_t at, count;
};

// Names the first field of `raw` that is not as in `want`.
[[noreturn]] void report(std::span<const std::byte> want, std::span<const std::byte> raw,
                         std::span<const Field> fields, const std::string& where) {
  for (const Field& field : fields) {
    const uint64_t wanted = get(want, field.at, field.count), got = get(raw, field.at, field.count);
    if (wanted != got)
      base::fail_with(base::ExitCode::Storage, "{}: {} is {:#x}; {:#x} was expected", where, field.name, got,
                      wanted);
  }
  base::fail_with(base::ExitCode::Storage, "{}: damaged header", where);
}

}  // namespace

int64_t ceil_blocks(int64_t length, int64_t block_bytes) {
  return length / block_bytes + (length % block_bytes != 0);
}

std::string shard_name(size_t shard_idx) { return fmt::format("shard-{:06}", shard_idx); }

ShardLayout ShardLayout::of(const Manifest& manifest, size_t shard_idx) {
  const ShardEntry& shard = manifest.shards.at(shard_idx);
  return {static_cast<uint32_t>(manifest.version),
          static_cast<uint32_t>(shard_idx),
          manifest.mark,
          manifest.step,
          shard.start,
          shard.length,
          manifest.block_bytes};
}

int64_t ShardLayout::num_blocks() const { return ceil_blocks(length, block_bytes); }

int64_t ShardLayout::payload_bytes(int64_t block_idx) const {
  return std::min(block_bytes, length - block_idx * block_bytes);
}

int64_t ShardLayout::block_position(int64_t block_idx) const {
  return kShardHeaderBytes + block_idx * (kBlockHeaderBytes + block_bytes);
}

int64_t ShardLayout::file_length() const {
  return kShardHeaderBytes + num_blocks() * kBlockHeaderBytes + length;
}

std::array<std::byte, kShardHeaderBytes> shard_header(const ShardLayout& layout) {
  std::array<std::byte, kShardHeaderBytes> out{};
  std::memcpy(out.data(), kShardMagic.data(), kShardMagic.size());
  put(out, 8, layout.version);
  put(out, 12, layout.shard_idx);
  put(out, 16, layout.mark);
  put(out, 24, layout.step);
  put(out, 32, layout.start);
  put(out, 40, layout.length);
  put(out, 48, layout.block_bytes);
  put(out, 60, base::crc32c(std::span(out).first(60)));
  return out;
}

std::array<std::byte, kBlockHeaderBytes> block_header(const ShardLayout& layout, int64_t block_idx,
                                                      uint32_t payload_crc) {
  std::array<std::byte, kBlockHeaderBytes> out{};
  put(out, 0, kBlockMagic);
  put(out, 4, static_cast<uint32_t>(layout.payload_bytes(block_idx)));
  put(out, 8, layout.mark);
  put(out, 16, layout.shard_idx);
  put(out, 20, static_cast<uint32_t>(block_idx));
  put(out, 24, payload_crc);
  put(out, 28, base::crc32c(std::span(out).first(28)));
  return out;
}

void check_shard_header(const ShardLayout& layout, std::span<const std::byte> raw, const std::string& where) {
  if (raw.size() != kShardHeaderBytes)
    base::fail_with(base::ExitCode::Storage, "{}: the header has {} bytes; {} were expected", where,
                    raw.size(), kShardHeaderBytes);
  const auto want = shard_header(layout);
  if (std::equal(want.begin(), want.end(), raw.begin())) return;
  constexpr Field kFields[] = {{"magic", 0, 8},
                               {"format version", 8, 4},
                               {"step", 24, 8},
                               {"shard number", 12, 4},
                               {"mark of the checkpoint", 16, 8},
                               {"start", 32, 8},
                               {"length", 40, 8},
                               {"block size", 48, 8},
                               {"header checksum", 60, 4}};
  report(want, raw, kFields, where);
}

std::span<const std::byte> check_block(const ShardLayout& layout, int64_t block_idx,
                                       std::span<const std::byte> raw, const std::string& where) {
  const int64_t wanted_bytes = kBlockHeaderBytes + layout.payload_bytes(block_idx);
  if (static_cast<int64_t>(raw.size()) != wanted_bytes)
    base::fail_with(base::ExitCode::Storage, "{}: {} bytes are there; {} were expected", where, raw.size(),
                    wanted_bytes);
  const std::span<const std::byte> payload = raw.subspan(kBlockHeaderBytes);
  const auto want = block_header(layout, block_idx, base::crc32c(payload));
  if (std::equal(want.begin(), want.end(), raw.begin())) return payload;
  constexpr Field kFields[] = {{"block magic", 0, 4},
                               {"mark of the checkpoint", 8, 8},
                               {"shard number", 16, 4},
                               {"block number", 20, 4},
                               {"length", 4, 4},
                               {"header checksum", 28, 4},
                               {"CRC-32C of the stored bytes", 24, 4}};
  // The stored header checksum goes with the stored payload checksum, so it says nothing when that one
  // differs.
  const auto stored = block_header(layout, block_idx, static_cast<uint32_t>(get(raw, 24, 4)));
  if (std::equal(stored.begin(), stored.end(), raw.begin()))
    base::fail_with(base::ExitCode::Storage, "{}: damaged: CRC-32C is {:08x}; {:08x} was written", where,
                    get(want, 24, 4), get(raw, 24, 4));
  report(want, raw, kFields, where);
}

}  // namespace pleat::checkpoint
