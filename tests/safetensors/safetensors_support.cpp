#include "safetensors/safetensors_support.h"

namespace pleat::safetensors {

std::string Random::text(size_t num_bytes) {
  std::string text(num_bytes, '\0');
  for (char& c : text) c = static_cast<char>(bits());
  return text;
}

std::string length_bytes(uint64_t length) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(length >> (8 * i) & 0xFF);
  return out;
}

std::string file_image(std::string_view json, std::string_view data) {
  return length_bytes(json.size()).append(json).append(data);
}

}  // namespace pleat::safetensors
