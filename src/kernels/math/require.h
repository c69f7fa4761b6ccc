// Checks that kernels share when a program is bound, beside require_shape and require_dtype of bind.h.
#pragma once

#include <initializer_list>

#include "kernels/bind.h"

namespace pleat::kernels {

inline void require_rank(std::string_view kernel, std::string_view argument, const Arg& arg, size_t rank) {
  if (arg.present && arg.shape.size() != rank)
    base::fail("[{}] argument '{}' has {} dimensions, needed {}", kernel, argument, arg.shape.size(), rank);
}

// names[i] is the name of argument i, or "" for one that is not looked at. All others that are present must
// have one floating type.
inline void require_same_dtype(std::string_view kernel, const Invocation& call,
                               std::initializer_list<std::string_view> names) {
  const Arg* first = nullptr;
  size_t i = 0;
  for (std::string_view name : names) {
    const Arg& arg = call[i++];
    if (name.empty() || !arg.present) continue;
    if (!first) {
      first = &arg;
      if (!tensor::is_float(arg.dtype))
        base::fail("[{}] argument '{}' is {}, needed f32 or f64", kernel, name, tensor::name_of(arg.dtype));
    }
    require_dtype(kernel, name, arg, first->dtype);
  }
}

// Same shape and same type as another argument.
inline void require_like(std::string_view kernel, std::string_view argument, const Arg& arg,
                         std::string_view other_name, const Arg& other) {
  require_dtype(kernel, argument, arg, other.dtype);
  require_rank(kernel, argument, arg, other.shape.size());
  for (size_t i = 0; i < other.shape.size(); ++i)
    if (arg.dim(i) != other.dim(i))
      base::fail("[{}] argument '{}' has {} in dimension {}, needed {} like '{}'", kernel, argument,
                 arg.dim(i), i, other.dim(i), other_name);
}

// An argument "x!" of program/ops.def reads what it overwrites, so its stage must say Update.
inline void require_in_place(std::string_view kernel, std::string_view argument, const Arg& arg) {
  if (arg.present && arg.access != program::Access::Update)
    base::fail("[{}] argument '{}' is changed in place, so its use must be an update", kernel, argument);
}

}  // namespace pleat::kernels
