#include "comm/messages/signature_bytes.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace pleat::comm {
namespace {

struct Header {
  uint64_t sequence, shape_hash;
  int64_t bytes, num_counts;
  int32_t root;
  Operation operation;
  tensor::Dtype dtype;
  Reduce reduce;
  char stage[160];
};

}  // namespace

std::vector<std::byte> to_bytes(const Signature& s, int group_size) {
  Header header{};
  header.sequence = s.sequence;
  header.shape_hash = s.shape_hash;
  header.bytes = s.bytes;
  header.num_counts = static_cast<int64_t>(s.counts.size());
  header.root = s.root;
  header.operation = s.operation;
  header.dtype = s.dtype;
  header.reduce = s.reduce;
  std::memcpy(header.stage, s.stage.data(), std::min(s.stage.size(), sizeof header.stage - 1));
  std::vector<std::byte> bytes(sizeof header + 2 * static_cast<size_t>(group_size) * sizeof(int64_t));
  PLEAT_CHECK(sizeof header + s.counts.size() * sizeof(int64_t) <= bytes.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  if (!s.counts.empty())
    std::memcpy(bytes.data() + sizeof header, s.counts.data(), s.counts.size() * sizeof(int64_t));
  return bytes;
}

Signature from_bytes(const std::vector<std::byte>& bytes) {
  Header header;
  std::memcpy(&header, bytes.data(), sizeof header);
  Signature s;
  s.sequence = header.sequence;
  s.shape_hash = header.shape_hash;
  s.bytes = header.bytes;
  s.root = header.root;
  s.operation = header.operation;
  s.dtype = header.dtype;
  s.reduce = header.reduce;
  s.stage = header.stage;
  s.counts.resize(static_cast<size_t>(header.num_counts));
  PLEAT_CHECK(sizeof header + s.counts.size() * sizeof(int64_t) <= bytes.size());
  if (!s.counts.empty())
    std::memcpy(s.counts.data(), bytes.data() + sizeof header, s.counts.size() * sizeof(int64_t));
  return s;
}

}  // namespace pleat::comm
