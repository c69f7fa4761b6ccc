// Element types of tensors in safetensors files, under the names the format gives them. A type outside this
// list is refused: a size that is not known cannot be checked.
#pragma once

#include <cstdint>
#include <string_view>

namespace pleat::safetensors {

// In the order the format's own library sorts by, so that equal contents give equal files.
enum class ElementType : uint8_t { Bool, U8, I8, F8E5M2, F8E4M3, I16, F16, BF16, I32, F32, F64, I64 };

constexpr int64_t size_of(ElementType type) {
  switch (type) {
    case ElementType::Bool:
    case ElementType::U8:
    case ElementType::I8:
    case ElementType::F8E5M2:
    case ElementType::F8E4M3:
      return 1;
    case ElementType::I16:
    case ElementType::F16:
    case ElementType::BF16:
      return 2;
    case ElementType::I32:
    case ElementType::F32:
      return 4;
    case ElementType::F64:
    case ElementType::I64:
      return 8;
  }
  return 0;
}

std::string_view name_of(ElementType type);  // "BF16"

// False, and `out` untouched, when the format has no such type or this project does not know its size.
bool find_element_type(std::string_view name, ElementType& out);

// "BOOL U8 ...", for messages.
std::string_view known_element_types();

}  // namespace pleat::safetensors
