// libFuzzer target for model.safetensors.index.json: text as it is, or edits of a valid index. What is
// accepted must hold only file names that stay in their folder and a table that finds every name it lists.
#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "safetensors/shard_index.h"

namespace {

using namespace pleat;

void require(bool holds) {
  if (!holds) std::abort();
}

void parse(const std::string& json) {
  safetensors::ShardIndex index;
  // A copy of exactly this size, so that a read beyond it is seen.
  const std::vector<char> exact(json.begin(), json.end());
  try {
    index = safetensors::parse_shard_index({exact.data(), exact.size()}, "fuzz");
  } catch (const base::Error&) {
    return;
  }
  require(!index.shards.empty() && !index.entries.empty());
  for (const std::string& shard : index.shards) {
    require(!shard.empty() && shard.size() <= 255 && shard != "." && shard != "..");
    for (const char c : shard) require(std::isalnum(static_cast<unsigned char>(c)) || std::strchr("._-", c));
    require(shard.ends_with(".safetensors"));
  }
  std::vector<bool> is_used(index.shards.size());
  for (size_t i = 0; i < index.entries.size(); ++i) {
    const safetensors::ShardIndex::Entry& entry = index.entries[i];
    require(entry.name.size() <= 1024 && index.find(entry.name) == &entry);
    require(i == 0 || index.entries[i - 1].name < entry.name);
    is_used.at(static_cast<size_t>(entry.shard_idx)) = true;
  }
  require(std::find(is_used.begin(), is_used.end(), false) == is_used.end());
}

const std::string kValid =
    R"({"metadata": {"total_size": 24, "note": [1, {"x": null}]}, "weight_map": {)"
    R"("a.weight": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors",)"
    R"( "c\u00e4": "model-00001-of-00002.safetensors"}})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string input(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 3 == 0) return parse(input), 0;
  // Groups of (position, count, length, text): cut `count` bytes and put `length` bytes of input there.
  std::string json = kValid;
  size_t at = 0;
  while (at + 3 <= input.size()) {
    const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<uint8_t>(input[at + i])); };
    const size_t where = byte(0) % (json.size() + 1), cut = byte(1) % 16, length = byte(2) % 16;
    json.replace(where, cut, input.substr(at + 3, length));
    at += 3 + length;
  }
  parse(json);
  return 0;
}
