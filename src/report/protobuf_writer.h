// Just enough of the protobuf wire format to write TensorBoard events: varint, fixed 32 and 64 bits, and
// length-delimited fields, appended to a string in little-endian order.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace pleat::report {

class ProtobufWriter {
 public:
  void integer(int field, int64_t value) {
    tag(field, 0);
    varint(static_cast<uint64_t>(value));
  }
  void float64(int field, double value) {
    tag(field, 1);
    fixed(value);
  }
  void float32(int field, float value) {
    tag(field, 5);
    fixed(value);
  }
  void bytes(int field, std::string_view value) {
    tag(field, 2);
    varint(value.size());
    out_.append(value);
  }
  void packed(int field, std::span<const double> values) {
    tag(field, 2);
    varint(values.size() * sizeof(double));
    for (const double value : values) fixed(value);
  }
  const std::string& text() const { return out_; }

 private:
  void tag(int field, int wire_type) {
    varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire_type));
  }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_.push_back(static_cast<char>(value | 0x80));
    out_.push_back(static_cast<char>(value));
  }
  template <class T>
  void fixed(T value) {
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    out_.append(raw, sizeof(T));
  }
  std::string out_;
};

}  // namespace pleat::report
