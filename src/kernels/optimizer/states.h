// What stands behind the weight in an update on states of fewer bits: the list `states` of adamw_coded, taken apart.
#pragma once

#include <span>

#include "kernels/contract.h"

namespace pleat::kernels {

struct UpdateStates {
  const Arg *m = nullptr, *m_scale = nullptr, *v = nullptr,
            *v_scale = nullptr;  // a scale: the moment is in codes
  const Arg* rest = nullptr;     // or the weight has none
  bool complete = false;         // nothing is missing, nothing is left over
};

inline UpdateStates states_of(std::span<const Arg> states) {
  UpdateStates out;
  size_t at = 0;
  const auto next = [&] { return at < states.size() ? &states[at++] : nullptr; };
  const auto moment = [&](const Arg*& codes, const Arg*& scale) {
    codes = next();
    if (codes && codes->dtype == tensor::Dtype::U8) scale = next();
    return codes && (codes->dtype != tensor::Dtype::U8 || scale);
  };
  const bool first = moment(out.m, out.m_scale), second = moment(out.v, out.v_scale);
  out.rest = next();
  out.complete = first && second && at == states.size();
  return out;
}

}  // namespace pleat::kernels
