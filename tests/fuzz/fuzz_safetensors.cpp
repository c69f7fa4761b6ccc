// libFuzzer target for safetensors headers. Inputs are taken as a whole file, as the JSON of a header, or as
// edits of a valid header, so that the checks behind the grammar are reached too. What is accepted must cover
// the data once with sizes that agree, and must be written and read again as the same table.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "safetensors/header.h"
#include "safetensors/writer.h"

namespace {

using namespace pleat;

void require(bool holds) {
  if (!holds) std::abort();
}

void check_table(const safetensors::Header& header, int64_t data_bytes) {
  int64_t covered = 0;
  std::vector<safetensors::TensorSpec> specs;
  for (const safetensors::TensorInfo& tensor : header.tensors()) {
    require(tensor.begin == covered && tensor.end >= tensor.begin);
    require(tensor.num_bytes() == safetensors::num_bytes_of(tensor, "fuzz"));
    require(tensor.name.size() <= 1024 && header.find(tensor.name) == &tensor);
    covered = tensor.end;
    specs.push_back(tensor);
  }
  require(covered == data_bytes);
  const std::string head = safetensors::print_header(specs, header.metadata(), "again");
  require(head.size() % 8 == 0);
  const safetensors::Header again =
      safetensors::parse_header(std::string_view(head).substr(8), data_bytes, "again");
  require(again.tensors().size() == specs.size() && again.metadata() == header.metadata());
  for (const safetensors::TensorSpec& spec : specs) {
    const safetensors::TensorInfo* tensor = again.find(spec.name);
    require(tensor != nullptr && tensor->type == spec.type && tensor->shape == spec.shape);
  }
}

void parse_whole_file(const std::string& bytes) {
  safetensors::Header header;
  // A copy of exactly this size, so that a read beyond it is seen.
  const std::vector<char> exact(bytes.begin(), bytes.end());
  try {
    header = safetensors::parse_file(std::as_bytes(std::span(exact)), "fuzz");
  } catch (const base::Error&) {
    return;
  }
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  check_table(header, static_cast<int64_t>(bytes.size() - 8 - length));
}

void parse_json(const std::string& json, int64_t data_bytes) {
  safetensors::Header header;
  const std::vector<char> exact(json.begin(), json.end());
  try {
    header = safetensors::parse_header({exact.data(), exact.size()}, data_bytes, "fuzz");
  } catch (const base::Error&) {
    return;
  }
  check_table(header, data_bytes);
}

const std::string& valid_json() {
  static const std::string json =
      safetensors::print_header({{"a", safetensors::ElementType::BF16, {2, 3}},
                                 {"b", safetensors::ElementType::F32, {}},
                                 {"c", safetensors::ElementType::U8, {0, 7}},
                                 {"d\xc3\xa4", safetensors::ElementType::I64, {1}},
                                 {"e", safetensors::ElementType::Bool, {5}}},
                                {{"format", "pt"}, {"note", "a\n"}}, "seed")
          .substr(8);
  return json;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string input(reinterpret_cast<const char*>(data) + 1, size - 1);
  constexpr int64_t kDataBytes = 12 + 4 + 0 + 8 + 5;
  if (data[0] % 4 == 0) return parse_whole_file(input), 0;
  if (data[0] % 4 == 1) return parse_json(input, static_cast<int64_t>(data[0] / 4)), 0;
  // Groups of (position, position, count, length, text): cut `count` bytes and put `length` bytes of input
  // there.
  std::string json = valid_json();
  size_t at = 0;
  while (at + 4 <= input.size()) {
    const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<uint8_t>(input[at + i])); };
    const size_t where = (byte(0) * 256 + byte(1)) % (json.size() + 1);
    const size_t cut = byte(2) % 16, length = byte(3) % 16;
    json.replace(where, cut, input.substr(at + 4, length));
    at += 4 + length;
  }
  parse_json(json, kDataBytes);
  return 0;
}
