// Head widths are padded to one of a few the kernels are built for.
#pragma once

#include <type_traits>

#include "kernels/attention/attention.h"

namespace pleat::kernels::attention {

template <int N>
using Width = std::integral_constant<int, N>;

// Calls f(Width<d>, Width<dv>) with the smallest pair that holds both.
template <class F>
void with_widths(int d, int dv, F&& f) {
  if (d <= 64 && dv <= 64)
    f(Width<64>{}, Width<64>{});
  else if (d <= 128 && dv <= 128)
    f(Width<128>{}, Width<128>{});
  else if (d <= 192 && dv <= 128)
    f(Width<192>{}, Width<128>{});
  else
    f(Width<256>{}, Width<256>{});
}

}  // namespace pleat::kernels::attention
