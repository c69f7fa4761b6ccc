#include "safetensors/element_type.h"

#include <array>
#include <utility>

#include "base/error.h"

namespace pleat::safetensors {

namespace {

constexpr std::array<std::pair<std::string_view, ElementType>, 12> kTypes{{
    {"BOOL", ElementType::Bool},
    {"U8", ElementType::U8},
    {"I8", ElementType::I8},
    {"F8_E5M2", ElementType::F8E5M2},
    {"F8_E4M3", ElementType::F8E4M3},
    {"I16", ElementType::I16},
    {"F16", ElementType::F16},
    {"BF16", ElementType::BF16},
    {"I32", ElementType::I32},
    {"F32", ElementType::F32},
    {"F64", ElementType::F64},
    {"I64", ElementType::I64},
}};

}  // namespace

std::string_view name_of(ElementType type) {
  for (const auto& [name, known] : kTypes)
    if (known == type) return name;
  PLEAT_CHECK(false, "unknown element type {}", static_cast<int>(type));
}

bool find_element_type(std::string_view name, ElementType& out) {
  for (const auto& [known, type] : kTypes)
    if (known == name) return out = type, true;
  return false;
}

std::string_view known_element_types() { return "BOOL U8 I8 F8_E5M2 F8_E4M3 I16 F16 BF16 I32 F32 F64 I64"; }

}  // namespace pleat::safetensors
