#include "report/format.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string_view>

namespace pleat::report {

namespace {

// Three significant digits for 0 <= value < 1000 (1024 for bytes).
std::string three_digits(double value) {
  if (value >= 99.95) return fmt::format("{:.0f}", value);
  if (value >= 9.995) return fmt::format("{:.1f}", value);
  return fmt::format("{:.2f}", value);
}

std::string odd(double value) { return fmt::format("{}", value); }  // nan, inf, -inf

template <size_t N>
std::string scaled(double value, double base, const std::array<std::string_view, N>& units) {
  if (!std::isfinite(value)) return odd(value);
  if (value < 0) return fmt::format("-{}", scaled(-value, base, units));
  size_t unit = 0;
  // The half keeps 999.7 k from being printed as "1000 k".
  while (unit + 1 < N && value >= base - 0.5) {
    value /= base;
    ++unit;
  }
  const bool whole = unit == 0 && value == std::floor(value);
  return fmt::format("{}{}", whole ? fmt::format("{:.0f}", value) : three_digits(value), units[unit]);
}

}  // namespace

std::string format_count(double count) { return scaled<6>(count, 1000, {"", " k", " M", " G", " T", " P"}); }

std::string format_bytes(double bytes) {
  return scaled<6>(bytes, 1024, {" B", " KiB", " MiB", " GiB", " TiB", " PiB"});
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds)) return odd(seconds);
  if (seconds < 0) return fmt::format("-{}", format_duration(-seconds));
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 59.5)
    return seconds < 9.95 ? fmt::format("{:.1f} s", seconds) : fmt::format("{:.0f} s", seconds);
  if (seconds < 3570) return fmt::format("{:.1f} min", seconds / 60);
  if (seconds < 2 * 86400) return fmt::format("{:.1f} h", seconds / 3600);
  return fmt::format("{:.1f} days", seconds / 86400);
}

std::string format_microseconds(double us) {
  if (!std::isfinite(us)) return odd(us);
  if (us < 999.5) return three_digits(us) + " µs";
  if (us < 999.5e3) return three_digits(us / 1e3) + " ms";
  return three_digits(us / 1e6) + " s";
}

std::string format_token_rate(double per_s) {
  return scaled<5>(per_s, 1000, {" tok/s", " ktok/s", " Mtok/s", " Gtok/s", " Ttok/s"});
}

std::string format_significant(double value, int digits) {
  if (!std::isfinite(value)) return odd(value);
  const double size = std::fabs(value);
  if (size == 0) return "0";
  if (size < 1e-3 || size >= 1e6) return fmt::format("{:.{}e}", value, digits - 1);
  const int before = size >= 1 ? static_cast<int>(std::floor(std::log10(size))) + 1 : 1;
  const int after = size >= 1 ? digits - before : digits - 1 - static_cast<int>(std::floor(std::log10(size)));
  return fmt::format("{:.{}f}", value, after > 0 ? after : 0);
}

}  // namespace pleat::report
