// libFuzzer target for the manifest parser. Half of the inputs are taken as text; the other half steer edits
// of a valid manifest, so that the checks behind the grammar are reached too. What is accepted must print to
// itself.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "checkpoint/manifest.h"
#include "checkpoint/shard.h"

namespace {

using namespace pleat;

void parse(const std::string& body) {
  checkpoint::Manifest manifest;
  try {
    manifest = checkpoint::parse_manifest_body(body, "fuzz");
  } catch (const base::Error&) {
    return;
  }
  const std::string printed = checkpoint::print_manifest(manifest);
  if (printed.substr(0, body.size()) != body) std::abort();
  checkpoint::parse_manifest(printed, "fuzz");
}

std::string make_body(int64_t version) {
  checkpoint::Manifest m;
  m.step = 12;
  m.parent = checkpoint::ParentEntry{10, {}};
  m.block_bytes = 64;
  m.integers = {{"cursor", -5}, {"seed", INT64_MAX}};
  m.reals = {{"lr", 0.25}};
  m.texts = {{"config", "a = 1\n\"\xc3\xa4"}};
  m.tensors = {{"a", tensor::Dtype::F32, {3, 5}, 0, 60, 20, {}},
               {"b", tensor::Dtype::U8, {0, 7}, 60, 0, 0, {}},
               {"c", tensor::Dtype::F64, {40}, 60, 320, 320, {}}};
  m.slices = {{0, {0, 3, 0, 8}}, {2, {0, 1, 0, 168}}, {0, {0, 3, 8, 20}}, {2, {0, 1, 168, 320}}};
  m.version = version;
  if (version == 1) m.slices.clear();
  if (version == checkpoint::kStreamedVersion) {
    m.tensors.push_back({"d", tensor::Dtype::F32, {100}, 380, 400, 400, {}, true});
    m.mark = 0x1234;
  }
  m.state_sha256 = checkpoint::digest_of_state(m);
  checkpoint::complete(m, "seed");
  m.shards = {{"shard-000000", 0, 192, 0, {}}, {"shard-000001", 192, 188, 0, {}}};
  for (size_t i = 0; i < m.shards.size(); ++i)
    m.shards[i].file_length = checkpoint::ShardLayout::of(m, i).file_length();
  const std::string text = checkpoint::print_manifest(m);
  const std::string body = text.substr(0, text.rfind("sha256 "));
  checkpoint::parse_manifest_body(body, "seed");
  return body;
}

const std::string& valid_body(int64_t version) {
  static const std::string old = make_body(1), current = make_body(checkpoint::kFormatVersion),
                           streamed = make_body(checkpoint::kStreamedVersion);
  return version == 1 ? old : version == checkpoint::kFormatVersion ? current : streamed;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string input(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 4 == 0) return parse(input), 0;
  if (data[0] % 4 == 1) {
    try {
      pleat::checkpoint::parse_manifest(input, "fuzz");
    } catch (const pleat::base::Error&) {
    }
    return 0;
  }
  // Groups of (position, position, count, length, text): cut `count` bytes and put `length` bytes of input
  // there.
  std::string body = valid_body(1 + data[0] / 4 % checkpoint::kNewestVersion);
  size_t at = 0;
  while (at + 4 <= input.size()) {
    const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<uint8_t>(input[at + i])); };
    const size_t where = (byte(0) * 256 + byte(1)) % (body.size() + 1);
    const size_t cut = byte(2) % 16, length = byte(3) % 16;
    body.replace(where, cut, input.substr(at + 4, length));
    at += 4 + length;
  }
  parse(body);
  return 0;
}
