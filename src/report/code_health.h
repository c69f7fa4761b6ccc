// How numbers fared that became codes of few bits in a step (precision.recipe; docs/numerics.md, section 11): counted by
// the stages that make codes, over all ranks and microbatches, what recompute codes again left out.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace pleat::report {

// Of one class of products, and one side of them.
struct CodeHealth {
  std::string module;     // as precision.modules names it
  std::string side;       // activations, gradients, weights
  int64_t numbers = 0;    // that are not 0; each counts as often as products of experts take it
  int64_t saturated = 0;  // finite ones past the largest value, which became it
  int64_t flushed = 0;    // that became 0
  int64_t nan = 0;        // that became NaN: not finite, or past what scales reach
  double largest = 0;     // largest finite |x|

  double share(int64_t part) const {
    return numbers > 0 ? static_cast<double>(part) / static_cast<double>(numbers) : 0.0;
  }
  bool operator==(const CodeHealth&) const = default;
};

// What they add up to, mildest first:
//   Fine       nothing below
//   Flushed    kMuchFlushed of the numbers of some class and side became 0, or more
//   Saturated  a number was cut to the largest value
//   NonFinite  a number became NaN
enum class CodeState { Fine, Flushed, Saturated, NonFinite };
inline constexpr double kMuchFlushed = 0.01;

CodeState state_of(const CodeHealth& health);
std::string_view name_of(CodeState state);     // "fine", "flushed", "saturated", "non-finite"
std::string_view meaning_of(CodeState state);  // the rule above in a few words, and what helps

// Over all classes: that of the worst one (by CodeState, then by the share flushed).
struct CodeVerdict {
  CodeState state = CodeState::Fine;
  std::string word;  // empty where nothing was coded
  std::string text;  // "gradients of experts: 0.02 % flushed, none saturated, no NaN"
};
CodeVerdict code_verdict(std::span<const CodeHealth> codes);

}  // namespace pleat::report
