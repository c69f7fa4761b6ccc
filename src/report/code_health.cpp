#include "report/code_health.h"

#include <fmt/format.h>

#include <utility>

namespace pleat::report {

CodeState state_of(const CodeHealth& health) {
  if (health.nan > 0) return CodeState::NonFinite;
  if (health.saturated > 0) return CodeState::Saturated;
  return health.share(health.flushed) >= kMuchFlushed ? CodeState::Flushed : CodeState::Fine;
}

std::string_view name_of(CodeState state) {
  switch (state) {
    case CodeState::Fine:
      return "fine";
    case CodeState::Flushed:
      return "flushed";
    case CodeState::Saturated:
      return "saturated";
    case CodeState::NonFinite:
      return "non-finite";
  }
  return "?";
}

std::string_view meaning_of(CodeState state) {
  switch (state) {
    case CodeState::Fine:
      return "hardly a number became 0, none was cut or became NaN";
    case CodeState::Flushed:
      return "1 % or more of the numbers of some class became 0; leave that class out of precision.modules "
             "if the loss suffers";
    case CodeState::Saturated:
      return "numbers past the largest code were cut to it";
    case CodeState::NonFinite:
      return "numbers became NaN: they were not finite, or past what scales reach; look at the learning rate";
  }
  return "";
}

CodeVerdict code_verdict(std::span<const CodeHealth> codes) {
  if (codes.empty()) return {};
  const CodeHealth* worst = &codes.front();
  const auto rank = [](const CodeHealth& h) { return std::pair(state_of(h), h.share(h.flushed)); };
  for (const CodeHealth& health : codes)
    if (rank(health) > rank(*worst)) worst = &health;
  CodeVerdict out;
  out.state = state_of(*worst);
  out.word = name_of(out.state);
  out.text = fmt::format("{} of {}: {:.3g} % flushed, {} saturated, {} NaN", worst->side, worst->module,
                         100 * worst->share(worst->flushed), worst->saturated, worst->nan);
  return out;
}

}  // namespace pleat::report
