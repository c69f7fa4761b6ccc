// libFuzzer target for the shard reader: headers and blocks of any bytes against any layout, and a whole
// checkpoint whose shard is edited. Only bytes exactly as written may pass.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/sim_vfs.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "checkpoint/shard.h"

namespace {

using namespace pleat;

void check_raw(std::span<const std::byte> input) {
  if (input.size() < 8) return;
  const auto at = [&](size_t i) { return std::to_integer<int64_t>(input[i]); };
  checkpoint::ShardLayout layout{
      2, static_cast<uint32_t>(at(0)), static_cast<uint64_t>(at(1)), at(2), at(3), 1 + at(4), 1 + at(5)};
  const int64_t block_idx = at(6) % layout.num_blocks();
  const auto raw = input.subspan(8);
  try {
    const auto payload = checkpoint::check_block(layout, block_idx, raw, "fuzz");
    if (static_cast<int64_t>(payload.size()) != layout.payload_bytes(block_idx)) std::abort();
    const auto header = checkpoint::block_header(layout, block_idx, base::crc32c(payload));
    if (!std::equal(header.begin(), header.end(), raw.begin())) std::abort();
  } catch (const base::Error&) {
  }
  try {
    checkpoint::check_shard_header(layout, raw, "fuzz");
    const auto header = checkpoint::shard_header(layout);
    if (!std::equal(header.begin(), header.end(), raw.begin(), raw.end())) std::abort();
  } catch (const base::Error&) {
  }
}

struct Saved {
  base::SimVfs disk;
  std::vector<std::byte> memory = std::vector<std::byte>(300);
  std::vector<std::byte> shard;
  Saved() {
    for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i * 7);
    checkpoint::StateView view;
    view.step = 3;
    view.tensors = {{"t", tensor::Dtype::U8, {300}, memory}};
    checkpoint::SaveOptions options;
    options.block_bytes = 64;
    checkpoint::save(disk, "run", view, options);
    shard = disk.contents("run/step-3/shard-000000");
  }
};

void check_file(std::span<const std::byte> input) {
  static Saved saved;
  std::vector<std::byte> bytes = saved.shard;
  // Groups of (position, position, value); a value of 0 at the end cuts the file there.
  for (; input.size() >= 3; input = input.subspan(3)) {
    const size_t where =
        (std::to_integer<size_t>(input[0]) * 256 + std::to_integer<size_t>(input[1])) % (bytes.size() + 1);
    if (where < bytes.size())
      bytes[where] ^= input[2];
    else
      bytes.push_back(input[2]);
  }
  const bool changed = bytes != saved.shard;
  saved.disk.set_contents("run/step-3/shard-000000", bytes);
  std::vector<std::byte> out(300, std::byte{0xEE});
  bool accepted = false;
  try {
    const checkpoint::Target target{"t", tensor::Dtype::U8, {300}, out};
    checkpoint::restore(checkpoint::open(saved.disk, "run/step-3"), {&target, 1});
    accepted = true;
  } catch (const base::Error&) {
    if (std::any_of(out.begin(), out.end(), [](std::byte b) { return b != std::byte{0xEE}; })) std::abort();
  }
  if (accepted == changed) std::abort();
  if (accepted && out != saved.memory) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto input = std::as_bytes(std::span(data + 1, size - 1));
  if (data[0] % 2 == 0)
    check_raw(input);
  else
    check_file(input);
  return 0;
}
