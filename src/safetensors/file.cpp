#include "safetensors/file.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "safetensors/json_text.h"
#include "safetensors/shard_index.h"

namespace pleat::safetensors {

File File::open(const std::string& path) {
  const SplitPath split = split_path(path);
  return open(open_folder(split.folder), split.name, path);
}

File File::open(const Descriptor& folder, const std::string& name, const std::string& path) {
  if (is_pickle_name(name)) refuse_pickle(name, path);
  OpenedFile opened = open_regular(folder, name, path);
  std::array<std::byte, kLengthBytes> first{};
  read_exactly(opened.descriptor,
               std::span(first).first(static_cast<size_t>(std::min(opened.size, kLengthBytes))), 0, path);
  const int64_t length = parse_header_length(first, opened.size, path);
  std::string json(static_cast<size_t>(length), '\0');
  read_exactly(opened.descriptor, std::as_writable_bytes(std::span(json)), kLengthBytes, path);
  const int64_t data_start = kLengthBytes + length;
  Header header = parse_header(json, opened.size - data_start, path);
  return File(std::move(opened.descriptor), path, std::move(header), data_start);
}

const TensorInfo& File::at(std::string_view name) const {
  const TensorInfo* tensor = find(name);
  if (tensor == nullptr) base::fail("{}: there is no tensor {}", path_, shown(name));
  return *tensor;
}

void File::read(std::string_view name, std::span<std::byte> out) const {
  const TensorInfo& tensor = at(name);
  if (static_cast<int64_t>(out.size()) != tensor.num_bytes())
    base::fail("{}: tensor {} has {} bytes, but room for {} was given", path_, shown(name),
               tensor.num_bytes(), out.size());
  read(tensor, 0, out);
}

void File::read(const TensorInfo& tensor, int64_t first_byte, std::span<std::byte> out) const {
  const int64_t count = static_cast<int64_t>(out.size());
  if (first_byte < 0 || first_byte > tensor.num_bytes() || count > tensor.num_bytes() - first_byte)
    base::fail("{}: {} bytes from byte {} on reach beyond the {} bytes of tensor {}", path_, count,
               first_byte, tensor.num_bytes(), shown(tensor.name));
  read_exactly(descriptor_, out, data_start_ + tensor.begin + first_byte, path_);
}

}  // namespace pleat::safetensors
