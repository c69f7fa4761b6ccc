#include "safetensors/writer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <tuple>

#include "base/checked.h"
#include "safetensors/json_text.h"

namespace pleat::safetensors {

static_assert(std::endian::native == std::endian::little, "the format is little-endian, and so is append()");

std::string print_header(std::vector<TensorSpec> tensors, const Metadata& metadata,
                         const std::string& where) {
  // Widest first keeps every tensor aligned to its element, which torch needs.
  std::sort(tensors.begin(), tensors.end(), [](const TensorSpec& a, const TensorSpec& b) {
    return std::tie(b.type, a.name) < std::tie(a.type, b.name);
  });
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) json += json_string(key) + ':' + json_string(value) + ',';
    json.back() = '}';
    json += ',';
  }
  int64_t begin = 0;
  for (const TensorSpec& tensor : tensors) {
    const int64_t end = base::checked_add(begin, num_bytes_of(tensor, where), "bytes of all tensors");
    json +=
        fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},",
                    json_string(tensor.name), name_of(tensor.type), fmt::join(tensor.shape, ","), begin, end);
    begin = end;
  }
  if (json.back() == ',') json.pop_back();
  json += '}';
  json.resize(static_cast<size_t>(base::round_up(static_cast<int64_t>(json.size()), kLengthBytes)), ' ');
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(json.size() >> (8 * i) & 0xFF);
  parse_header_length(std::as_bytes(std::span(out)), kLengthBytes + static_cast<int64_t>(json.size()), where);
  parse_header(json, begin, where);
  return out + json;
}

Writer::Writer(const std::string& path, std::vector<TensorSpec> tensors, const Metadata& metadata)
    : Writer(OutputFolder::open(split_path(path).folder), split_path(path).name, std::move(tensors),
             metadata) {}

Writer::Writer(std::shared_ptr<const OutputFolder> folder, const std::string& name,
               std::vector<TensorSpec> tensors, const Metadata& metadata)
    : folder_(std::move(folder)) {
  const std::string path = join(folder_->path, name);
  int64_t num_bytes = 0;
  for (const TensorSpec& tensor : tensors)
    num_bytes = base::checked_add(num_bytes, num_bytes_of(tensor, path), "bytes of all tensors");
  const std::string head = print_header(std::move(tensors), metadata, path);
  header_ = parse_header(std::string_view(head).substr(kLengthBytes), num_bytes, path);
  data_start_ = static_cast<int64_t>(head.size());
  num_missing_ = num_bytes;
  num_written_.assign(header_.tensors().size(), 0);
  file_ = std::make_unique<NewFile>(folder_, name, base::checked_add(data_start_, num_bytes, "file size"));
  file_->write(std::as_bytes(std::span(head)), 0);
}

void Writer::append(std::string_view name, std::span<const std::byte> bytes) {
  const TensorInfo* tensor = header_.find(name);
  if (tensor == nullptr) base::fail("{}: tensor {} was not declared", file_->path(), shown(name));
  int64_t& written = num_written_[static_cast<size_t>(tensor - header_.tensors().data())];
  const int64_t count = static_cast<int64_t>(bytes.size());
  if (count > tensor->num_bytes() - written)
    base::fail("{}: tensor {} has {} bytes; {} were written and {} more came", file_->path(), shown(name),
               tensor->num_bytes(), written, count);
  file_->write(bytes, data_start_ + tensor->begin + written);
  written += count;
  num_missing_ -= count;
}

void Writer::sync() {
  for (size_t i = 0; i < num_written_.size(); ++i) {
    const TensorInfo& tensor = header_.tensors()[i];
    if (num_written_[i] != tensor.num_bytes())
      base::fail("{}: only {} of the {} bytes of tensor {} were written", file_->path(), num_written_[i],
                 tensor.num_bytes(), shown(tensor.name));
  }
  file_->sync();
}

void Writer::finish() {
  sync();
  commit();
  folder_->sync();
}

}  // namespace pleat::safetensors
