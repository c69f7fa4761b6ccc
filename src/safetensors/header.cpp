#include "safetensors/header.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "safetensors/json_text.h"

namespace pleat::safetensors {

namespace {

// The grammar is the schema: whatever the format does not define stops the parse where it stands.
class HeaderEvents : public JsonEvents {
 public:
  explicit HeaderEvents(const std::string& where) : where_(where) {}

  std::vector<TensorInfo> tensors;
  std::map<std::string, std::string> metadata;

  void begin_object() override {
    if (at_ == At::Start) {
      at_ = At::Root;
    } else if (at_ == At::Root && name_ == "__metadata__") {
      at_ = At::Metadata;
    } else if (at_ == At::Root) {
      if (static_cast<int64_t>(tensors.size()) >= kMaxTensors)
        base::fail("{}: more than {} tensors", where_, kMaxTensors);
      tensors.emplace_back().name = name_;
      has_type_ = has_shape_ = has_offsets_ = false;
      at_ = At::Tensor;
    } else {
      refuse("an object");
    }
  }

  void end_object() override {
    if (at_ == At::Tensor) {
      const char* missing = !has_type_ ? "dtype" : !has_shape_ ? "shape" : "data_offsets";
      if (!has_type_ || !has_shape_ || !has_offsets_)
        base::fail("{}: tensor {} has no '{}'", where_, shown(name_), missing);
    }
    at_ = at_ == At::Root ? At::Start : At::Root;
  }

  void begin_array() override {
    if (at_ == At::Tensor && field_ == "shape") {
      at_ = At::Shape;
    } else if (at_ == At::Tensor && field_ == "data_offsets") {
      num_offsets_ = 0;
      at_ = At::Offsets;
    } else {
      refuse("an array");
    }
  }

  void end_array() override {
    if (at_ == At::Shape) has_shape_ = true;
    if (at_ == At::Offsets) {
      if (num_offsets_ != 2) refuse_offset_count();
      has_offsets_ = true;
    }
    at_ = At::Tensor;
  }

  void key(const std::string& key) override {
    if (at_ == At::Tensor && key != "dtype" && key != "shape" && key != "data_offsets")
      base::fail("{}: tensor {} has the unknown key {}; known: dtype shape data_offsets", where_,
                 shown(name_), shown(key));
    (at_ == At::Root ? name_ : field_) = key;
  }

  void text(const std::string& value) override {
    if (at_ == At::Metadata) {
      metadata.emplace(field_, value);
      return;
    }
    if (at_ != At::Tensor || field_ != "dtype") refuse("a string");
    if (!find_element_type(value, tensors.back().type))
      base::fail("{}: tensor {} has the unknown dtype {}; known: {}", where_, shown(name_), shown(value),
                 known_element_types());
    has_type_ = true;
  }

  void whole_number(int64_t value) override {
    if (at_ == At::Shape) {
      std::vector<int64_t>& shape = tensors.back().shape;
      if (static_cast<int64_t>(shape.size()) >= kMaxDimensions)
        base::fail("{}: tensor {} has more than {} dimensions", where_, shown(name_), kMaxDimensions);
      shape.push_back(value);
    } else if (at_ == At::Offsets) {
      if (++num_offsets_ > 2) refuse_offset_count();
      (num_offsets_ == 1 ? tensors.back().begin : tensors.back().end) = value;
    } else {
      refuse("a number");
    }
  }

  void other(std::string_view what) override { refuse(what); }

 private:
  enum class At { Start, Root, Metadata, Tensor, Shape, Offsets };

  [[noreturn]] void refuse_offset_count() const {
    base::fail("{}: data_offsets of tensor {} must be two numbers", where_, shown(name_));
  }

  [[noreturn]] void refuse(std::string_view what) const {
    switch (at_) {
      case At::Start:
        base::fail("{}: the header is {}; an object is needed", where_, what);
      case At::Root:
        base::fail("{}: {} is {}; an object is needed", where_, shown(name_), what);
      case At::Metadata:
        base::fail("{}: __metadata__ key {} holds {}; only strings are allowed", where_, shown(field_), what);
      case At::Tensor:
        base::fail("{}: '{}' of tensor {} is {}; needed: dtype a string, shape and data_offsets arrays",
                   where_, field_, shown(name_), what);
      case At::Shape:
      case At::Offsets:
        base::fail("{}: {} of tensor {} holds {}; only whole numbers from 0 to 2^53, in digits, are allowed",
                   where_, field_, shown(name_), what);
    }
    PLEAT_CHECK(false);
  }

  const std::string& where_;
  At at_ = At::Start;
  std::string name_, field_;
  bool has_type_ = false, has_shape_ = false, has_offsets_ = false;
  int num_offsets_ = 0;
};

// Two independent statements about one tensor, its shape and its bytes, must agree before either is used;
// together the ranges must cover the data once.
void check_ranges(const std::vector<TensorInfo>& tensors, int64_t data_bytes, const std::string& where) {
  int64_t covered = 0;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.begin > tensor.end)
      base::fail("{}: data_offsets [{}, {}] of tensor {} run backwards", where, tensor.begin, tensor.end,
                 shown(tensor.name));
    if (tensor.end > data_bytes)
      base::fail("{}: tensor {} ends at byte {}, but the file holds {} bytes of data", where,
                 shown(tensor.name), tensor.end, data_bytes);
    const int64_t needed = num_bytes_of(tensor, where);
    if (tensor.num_bytes() != needed)
      base::fail("{}: tensor {} of shape {} and type {} needs {} bytes, but data_offsets [{}, {}] hold {}",
                 where, shown(tensor.name), shape_text(tensor.shape), name_of(tensor.type), needed,
                 tensor.begin, tensor.end, tensor.num_bytes());
    if (tensor.begin < covered)
      base::fail("{}: tensor {} starts at byte {} inside the tensor before it, which ends at {}", where,
                 shown(tensor.name), tensor.begin, covered);
    if (tensor.begin > covered)
      base::fail("{}: bytes {} to {} of the data, before tensor {}, belong to no tensor", where, covered,
                 tensor.begin, shown(tensor.name));
    covered = tensor.end;
  }
  if (covered != data_bytes)
    base::fail("{}: the last tensor ends at byte {}, but the file holds {} bytes of data", where, covered,
               data_bytes);
}

}  // namespace

Header::Header(std::vector<TensorInfo> tensors, std::map<std::string, std::string> metadata)
    : tensors_(std::move(tensors)), metadata_(std::move(metadata)), by_name_(tensors_.size()) {
  std::iota(by_name_.begin(), by_name_.end(), 0);
  std::sort(by_name_.begin(), by_name_.end(), [&](int32_t a, int32_t b) {
    return tensors_[static_cast<size_t>(a)].name < tensors_[static_cast<size_t>(b)].name;
  });
}

const TensorInfo* Header::find(std::string_view name) const {
  const auto at = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [&](int32_t i, std::string_view n) { return tensors_[static_cast<size_t>(i)].name < n; });
  if (at == by_name_.end()) return nullptr;
  const TensorInfo& tensor = tensors_[static_cast<size_t>(*at)];
  return tensor.name == name ? &tensor : nullptr;
}

int64_t num_bytes_of(const TensorSpec& spec, const std::string& where) {
  // Zeros are left out of the product and put in at the end: sizes that overflow do not become harmless by a
  // zero beside them.
  int64_t bytes = size_of(spec.type);
  bool is_empty = false;
  for (const int64_t size : spec.shape) {
    if (size < 0) base::fail("{}: tensor {} has the negative size {}", where, shown(spec.name), size);
    if (size == 0)
      is_empty = true;
    else if (__builtin_mul_overflow(bytes, size, &bytes))
      base::fail("{}: shape {} of tensor {} times the {} bytes of {} overflows", where,
                 shape_text(spec.shape), shown(spec.name), size_of(spec.type), name_of(spec.type));
  }
  return is_empty ? 0 : bytes;
}

int64_t parse_header_length(std::span<const std::byte> first_bytes, int64_t file_bytes,
                            const std::string& where) {
  if (file_bytes < kLengthBytes)
    base::fail("{}: {} bytes are too few for a safetensors file, which starts with an 8-byte header length",
               where, file_bytes);
  PLEAT_CHECK(static_cast<int64_t>(first_bytes.size()) >= kLengthBytes);
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) length |= std::to_integer<uint64_t>(first_bytes[i]) << (8 * i);
  if (length > static_cast<uint64_t>(kMaxHeaderBytes)) {
    const bool is_zip = (length & 0xFFFFFFFFu) == 0x04034B50u;                       // "PK\3\4": torch.save
    const bool is_pickle = (length & 0xFFu) == 0x80u && (length >> 8 & 0xFFu) <= 5;  // protocol mark
    base::fail("{}: header length {} is above the limit of {}{}", where, length, kMaxHeaderBytes,
               is_zip || is_pickle ? "; this looks like a Python pickle, which is never read" : "");
  }
  if (length > static_cast<uint64_t>(file_bytes - kLengthBytes))
    base::fail("{}: header length {} is larger than the {} bytes that follow it", where, length,
               file_bytes - kLengthBytes);
  return static_cast<int64_t>(length);
}

Header parse_header(std::string_view json, int64_t data_bytes, const std::string& where) {
  HeaderEvents events(where);
  read_json(json, where, events);
  std::vector<TensorInfo> tensors = std::move(events.tensors);
  // Empty tensors share their start with the one that follows; by end they come first, and the name makes the
  // order one.
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  check_ranges(tensors, data_bytes, where);
  return Header(std::move(tensors), std::move(events.metadata));
}

Header parse_file(std::span<const std::byte> file, const std::string& where) {
  const int64_t file_bytes = static_cast<int64_t>(file.size());
  const int64_t length = parse_header_length(file, file_bytes, where);
  const std::string_view json(reinterpret_cast<const char*>(file.data()) + kLengthBytes,
                              static_cast<size_t>(length));
  return parse_header(json, file_bytes - kLengthBytes - length, where);
}

std::string shape_text(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace pleat::safetensors
