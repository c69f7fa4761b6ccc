// How codes of few bits fared in a step, class by class of product and side by side: the rows of step::code_counts and
// step::code_largest. schedule/pass/low_precision.h lets stages that make codes count into them.
#pragma once

#include <cstdint>
#include <string_view>

#include "program/program.h"

namespace pleat::program {

// In the order of a layer, spelled as precision.modules spells them.
enum class CodeModule : uint8_t { Attention, Latent, Mlp, Experts, SharedExperts };
enum class CodeSide : uint8_t { Activations, Gradients, Weights };

inline constexpr int kNumCodeModules = 5, kNumCodeSides = 3, kNumCodeRows = kNumCodeModules * kNumCodeSides;
// Of each row, in this order: numbers that are not 0, of these saturated, flushed to 0, and made NaN.
inline constexpr int kNumCodeCounts = 4;

constexpr int code_row(CodeModule module, CodeSide side) {
  return static_cast<int>(module) * kNumCodeSides + static_cast<int>(side);
}
constexpr std::string_view name_of(CodeModule module) {
  constexpr std::string_view names[] = {"attention", "latent", "mlp", "experts", "shared_experts"};
  return names[static_cast<int>(module)];
}
constexpr std::string_view name_of(CodeSide side) {
  constexpr std::string_view names[] = {"activations", "gradients", "weights"};
  return names[static_cast<int>(side)];
}

// Stages that make codes. Tables of time give them a row of their own, so that what they cost shows.
inline constexpr std::string_view kCodesRow = "codes of few bits";
constexpr bool makes_codes(KernelKind kind) {
  return kind == KernelKind::quantize || kind == KernelKind::turn_codes ||
         kind == KernelKind::quantize_weight;
}

}  // namespace pleat::program
