// Where the ticks of an axis go and what they say: round steps of 1, 2 or 5 times a power of ten, decades on
// a logarithmic axis.
#pragma once

#include <string>
#include <vector>

namespace pleat::report::html {

enum class Scale { Linear, Log };

class Axis {
 public:
  // Covers [low, high] widened to whole ticks at both ends where `widen`; low <= high, at most 1e300
  // in size, and at least 1e-300 for Log. An empty range is widened to something visible.
  Axis(double low, double high, Scale scale, int wanted_ticks, bool widen);

  double low() const { return low_; }
  double high() const { return high_; }
  const std::vector<double>& ticks() const { return ticks_; }
  // Place of a value, 0 at low, 1 at high; values outside fall outside.
  double place(double value) const;
  // The tick in as few digits as tell neighbouring ticks apart.
  std::string label(double tick) const;

 private:
  double low_, high_, step_ = 0.0;
  Scale scale_;
  std::vector<double> ticks_;
};

}  // namespace pleat::report::html
