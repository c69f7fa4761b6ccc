#include "report/html/axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace pleat::report::html {

namespace {

constexpr double kTiny = 1e-290;  // below it a step between ticks may round to 0

double round_step(double rough) {
  const double decade = std::pow(10.0, std::floor(std::log10(rough)));
  const double lead = rough / decade;
  return decade * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
}

// `size` picks the unit: that of the largest tick, so that all labels of an axis share it.
std::string with_suffix(double value, double step, double size) {
  double unit = 1;
  std::string_view suffix;
  if (size >= 1e9)
    unit = 1e9, suffix = "G";
  else if (size >= 1e6)
    unit = 1e6, suffix = "M";
  else if (size >= 1e4)
    unit = 1e3, suffix = "k";
  const int decimals = std::clamp(static_cast<int>(-std::floor(std::log10(step / unit) + 1e-9)), 0, 9);
  return fmt::format("{:.{}f}{}", value / unit, decimals, suffix);
}

}  // namespace

Axis::Axis(double low, double high, Scale scale, int wanted_ticks, bool widen)
    : low_(low), high_(high), scale_(scale) {
  PLEAT_CHECK(std::fabs(low) <= 1e300 && std::fabs(high) <= 1e300 && low <= high && wanted_ticks > 0,
              "axis {}..{}", low, high);
  if (scale == Scale::Log) {
    PLEAT_CHECK(low >= 1e-300, "log axis from {}", low);
    if (low_ == high_) low_ /= 2, high_ *= 2;
    // Decades, with 2 and 5 in between while there are only a few of them.
    const double decades = std::log10(high_ / low_);
    const std::vector<double> leads = decades <= 2.5 ? std::vector<double>{1, 2, 5} : std::vector<double>{1};
    const int every = std::max(1, static_cast<int>(std::ceil(decades / wanted_ticks)));
    const int first = static_cast<int>(std::floor(std::log10(low_)));
    for (int exponent = first; exponent <= first + static_cast<int>(decades) + 2; exponent += every)
      for (const double lead : leads) ticks_.push_back(lead * std::pow(10.0, exponent));
    if (widen) {
      const auto above_low = std::upper_bound(ticks_.begin(), ticks_.end(), low_);
      const auto from_high = std::lower_bound(ticks_.begin(), ticks_.end(), high_);
      if (above_low != ticks_.begin()) low_ = *(above_low - 1);
      if (from_high != ticks_.end()) high_ = *from_high;
    }
  } else {
    // Also keeps the step from vanishing beside huge values.
    const double size = std::max(std::fabs(low_), std::fabs(high_));
    if (high_ - low_ <= std::max(1e-12 * size, kTiny)) {
      const double pad = size > kTiny ? size * 0.05 : 0.5;
      low_ -= pad;
      high_ += pad;
    }
    step_ = round_step((high_ - low_) / wanted_ticks);
    if (widen) {
      low_ = std::floor(low_ / step_ + 1e-9) * step_;
      high_ = std::ceil(high_ / step_ - 1e-9) * step_;
    }
    const double first = std::ceil(low_ / step_ - 1e-9);
    for (int i = 0; (first + i) * step_ <= high_ + 1e-9 * step_; ++i) ticks_.push_back((first + i) * step_);
  }
  std::erase_if(ticks_, [&](double tick) { return place(tick) < -1e-9 || place(tick) > 1 + 1e-9; });
}

double Axis::place(double value) const {
  if (scale_ == Scale::Log) return std::log(value / low_) / std::log(high_ / low_);
  return (value - low_) / (high_ - low_);
}

std::string Axis::label(double tick) const {
  const double size = std::fabs(tick);
  if (scale_ == Scale::Log) {
    if (size >= 1e-3 && size < 1e4) return fmt::format("{:g}", tick);
    return size >= 1e4 && size < 1e12 ? with_suffix(tick, size, size) : fmt::format("{:.0e}", tick);
  }
  if (size < step_ * 1e-6) return "0";
  if (std::max(std::fabs(low_), std::fabs(high_)) < 1e-2) {
    const int digits =
        static_cast<int>(std::floor(std::log10(size) + 1e-9) - std::floor(std::log10(step_) + 1e-9));
    return fmt::format("{:.{}e}", tick, std::clamp(digits, 0, 6));
  }
  return with_suffix(tick, step_, std::max(std::fabs(low_), std::fabs(high_)));
}

}  // namespace pleat::report::html
