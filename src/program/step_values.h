// Inputs and results by name and type, made from program/step_values.def:
//
//   executor.at(step::tokens, microbatch)[t] = 7;        // std::span<int32_t>
//   executor.at(step::loss)[0];                          // std::span<double>
//   executor.at(step::load, layer)
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>
#include <unordered_map>

#include "program/program.h"
#include "program/value_name.h"
#include "tensor/dtype.h"

namespace pleat::program {

enum class Of : uint8_t { Step, Microbatch, Layer, MicrobatchLayer };

enum class StepValueId : uint8_t {
#define PLEAT_STEP_VALUE(name, type, of) name,
#include "program/step_values.def"
#undef PLEAT_STEP_VALUE
};

// Which value of a program: of step values of a layer or a microbatch there are several.
struct StepValueKey {
  StepValueId id;
  int microbatch = -1, layer = -1;
};

template <class T, Of kOf>
struct StepValue {
  StepValueId id;
  std::string_view what;

  // The numbers that say which: none, the microbatch, the layer, or both in this order.
  template <class... Index>
  StepValueKey key(Index... index) const {
    static_assert(sizeof...(index) == (kOf == Of::Step              ? 0
                                       : kOf == Of::MicrobatchLayer ? 2
                                                                    : 1),
                  "give the microbatch, the layer, or both, as step_values.def says");
    const int at[] = {static_cast<int>(index)..., -1, -1};
    return kOf == Of::Layer ? StepValueKey{id, -1, at[0]} : StepValueKey{id, at[0], at[1]};
  }
  template <class... Index>
  ValueName name(Index... index) const {
    const StepValueKey k = key(index...);
    return tagged(what, k.microbatch, k.layer);
  }
};

// The element type of its values.
template <class T, Of kOf>
constexpr tensor::Dtype dtype_of(const StepValue<T, kOf>&) {
  return tensor::DtypeOf<T>::value;
}

namespace step {
#define PLEAT_STEP_VALUE(name, type, of) \
  inline constexpr StepValue<type, Of::of> name{StepValueId::name, #name};
#include "program/step_values.def"
#undef PLEAT_STEP_VALUE
}  // namespace step

// Where a program has them. Read once, when the program is bound.
class StepValues {
 public:
  explicit StepValues(const Program& program);
  ValueId find(StepValueKey key) const;  // kNoValue: the program has none

 private:
  std::unordered_map<uint64_t, ValueId> found_;
};

std::string_view name_of(StepValueId id);

}  // namespace pleat::program
