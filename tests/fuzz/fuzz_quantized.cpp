// libFuzzer target for weights stored as codes and scales. Inputs are edits of the header of a valid file, then the
// bytes of its tensors: any file gives tensors of numbers that can be read whole and in pieces, with equal bytes and
// all of them finite, or an error.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "safetensors/convert.h"
#include "safetensors/quantized/block_tensor.h"
#include "safetensors/writer.h"

namespace {

using namespace pleat;
using safetensors::ElementType;

void require(bool holds) {
  if (!holds) std::abort();
}

struct Folder {
  char path_[32] = "/tmp/pleat-fuzz-XXXXXX";
  std::string path = ::mkdtemp(path_);
  ~Folder() { std::filesystem::remove_all(path); }
};

std::string header_of(const safetensors::Scheme& scheme) {
  if (scheme.method == safetensors::Scheme::Method::Mxfp4)
    return safetensors::print_header({{"x_blocks", ElementType::U8, {2, 2, 1, 16}},
                                      {"x_scales", ElementType::U8, {2, 2, 1}},
                                      {"y", ElementType::BF16, {2}}},
                                     {}, "seed");
  return safetensors::print_header({{"a.weight", ElementType::F8E4M3, {3, 5}},
                                    {"a.weight_scale_inv", ElementType::F32, {2, 2}},
                                    {"b.weight", ElementType::F8E4M3, {2, 3, 2}},
                                    {"b.weight_scale_inv", ElementType::BF16, {2, 2, 1}},
                                    {"c.weight", ElementType::BF16, {2}}},
                                   {}, "seed");
}

void read_all(const safetensors::BlockTensor& tensor) {
  const auto size = static_cast<size_t>(tensor.info().num_bytes());
  if (size > (1 << 20)) return;
  std::vector<std::byte> whole(size), pieces(size);
  tensor.read(0, whole);
  for (size_t at = 0; at < size; at += 7)
    tensor.read(static_cast<int64_t>(at), std::span(pieces).subspan(at, std::min<size_t>(7, size - at)));
  require(whole == pieces);
  std::vector<float> numbers(static_cast<size_t>(tensor.info().num_elements()));
  safetensors::decode(tensor.info().type, whole, std::span(numbers));
  for (const float x : numbers) require(std::isfinite(x));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  safetensors::Scheme scheme;
  scheme.method = data[0] % 2 ? safetensors::Scheme::Method::Mxfp4 : safetensors::Scheme::Method::Fp8;
  scheme.block_rows = 1 + data[0] / 2 % 4;
  scheme.block_columns = 1 + data[0] / 8 % 8;
  if (data[0] == 10) scheme.block_rows = 2, scheme.block_columns = 3;  // of the valid file
  scheme.plain_modules = {"a*", "x"};
  std::string file = header_of(scheme);
  // data[1] edits of (position, count, length, text), then tensors.
  const std::string input(reinterpret_cast<const char*>(data) + 2, size - 2);
  size_t at = 0;
  for (int edit = 0; edit < data[1] % 8 && at + 3 <= input.size(); ++edit) {
    const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<uint8_t>(input[at + i])); };
    const size_t where = std::min<size_t>(8 + byte(0) * 2, file.size()), length = byte(2) % 16;
    file.replace(where, byte(1) % 16, input.substr(at + 3, length));
    at += 3 + length;
  }
  const uint64_t header_bytes = file.size() - 8;
  for (int i = 0; i < 8; ++i) file[static_cast<size_t>(i)] = static_cast<char>(header_bytes >> 8 * i);
  file += input.substr(std::min(at, input.size()));

  static const Folder folder;
  const std::string path = folder.path + "/model.safetensors";
  std::ofstream(path, std::ios::binary) << file;
  try {
    const safetensors::File opened = safetensors::File::open(path);
    std::vector<safetensors::StoredTensor> stored;
    for (const safetensors::TensorInfo& tensor : opened.tensors()) stored.push_back({&opened, &tensor});
    std::sort(stored.begin(), stored.end(),
              [](const auto& a, const auto& b) { return a.tensor->name < b.tensor->name; });
    const safetensors::BlockTensors found = safetensors::find_block_tensors(scheme, stored, folder.path);
    require(found.consumed.size() == stored.size());
    for (const auto& tensor : found.tensors) try {
        read_all(*tensor);
      } catch (const base::Error&) {
      }
  } catch (const base::Error&) {
  }
  return 0;
}
