#include "tune/memory_size.h"

#include <charconv>

#include "base/error.h"
#include "config/quote.h"

namespace pleat::tune {

int64_t memory_size(std::string_view text, std::string_view option) {
  constexpr double kMost = 1024.0 * 1024 * 1024 * 1024 * 1024;
  struct Unit {
    std::string_view name;
    double bytes;
  };
  constexpr Unit kUnits[] = {{"B", 1},
                             {"KiB", 1024.0},
                             {"MiB", 1024.0 * 1024},
                             {"GiB", 1024.0 * 1024 * 1024},
                             {"TiB", 1024.0 * 1024 * 1024 * 1024},
                             {"kB", 1e3},
                             {"MB", 1e6},
                             {"GB", 1e9},
                             {"TB", 1e12}};
  constexpr const char* kNeeded =
      "needed is a number with a unit, such as 138GiB (B, KiB, MiB, GiB, TiB, or kB, MB, GB, TB)";
  double number = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  if (fault != std::errc()) base::fail("{} {}: no number; {}", option, config::quote(text), kNeeded);
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  if (unit.empty()) base::fail("{} {}: the unit is missing; {}", option, config::quote(text), kNeeded);
  for (const Unit& u : kUnits) {
    if (u.name != unit) continue;
    const double bytes = number * u.bytes;
    if (!(bytes >= 1 && bytes <= kMost))
      base::fail("{} {}: needed is at least one byte and at most 1024 TiB", option, config::quote(text));
    return static_cast<int64_t>(bytes);
  }
  base::fail("{} {}: unit {} is not known; {}", option, config::quote(text), config::quote(unit), kNeeded);
}

}  // namespace pleat::tune
