// What is reached of a machine's rates: for a class of kernels, time = launches x a + flops / peak x b + bytes / rate x c.
//
// a, b and c are fitted, by the least sum of relative differences (not of their squares: one odd shape is not to move all
// others), none below zero, a at most 6, to measured stages (cost_file.h) and are numbers without a unit: carried to another machine by its launch cost, peak and memory rate. The bytes stand for
// shape too: a product with a short side moves more of them for the same arithmetic, and so reaches less of the peak.
#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cost/machine.h"
#include "kernels/contract.h"
#include "program/program.h"

namespace pleat::cost {

// Kernels that behave alike.
enum class CurveClass : uint8_t {
  Product,
  Grouped,
  GroupedWeight,  // their weight gradients, which end in the gradient's bytes for every expert
  Attention,
  AttentionBack,
  Stream,
  Update,
  Scaled,  // products of codes of few bits with scales of blocks
  ScaledGrouped
};
constexpr size_t kNumCurveClasses = 9;
std::string_view name_of(CurveClass c);
CurveClass curve_class(program::KernelKind kind, program::Phase phase, const kernels::Work& work);

struct Curve {
  double launch = 1, flops = 1, bytes = 1;
  bool operator==(const Curve&) const = default;
};

struct Curves {
  MachineKind kind =
      MachineKind::Gpu;  // of the machine they were fitted on: they say nothing of the other kind
  std::string source;    // for people: what they were fitted to
  std::array<Curve, kNumCurveClasses> of{};
  const Curve& operator[](CurveClass c) const { return of[static_cast<size_t>(c)]; }
  bool operator==(const Curves&) const = default;
};

// All of every rate.
Curves ideal_curves(MachineKind kind = MachineKind::Gpu);
// Those of the binary: an H200's, or of CPUs.
Curves shipped_curves(MachineKind kind);

double curve_ns(const Machine& machine, const Curve& curve, tensor::Dtype dtype, const kernels::Work& work);

// One measured stage.
struct CurvePoint {
  CurveClass of = CurveClass::Stream;
  tensor::Dtype dtype = tensor::Dtype::F32;
  kernels::Work work;
  double ns = 0;
  double weight = 1;  // how often a step has it
};
struct CurveFit {
  CurveClass of = CurveClass::Stream;
  Curve curve;
  int points = 0;
  double mean_error = 0, worst_error = 0;  // |fitted / measured - 1|, by weight and the largest
};
struct FittedCurves {
  Curves curves;
  std::vector<CurveFit> fits;  // of the classes that have points; others are those of `prior`
};
FittedCurves fit_curves(const Machine& machine, const std::vector<CurvePoint>& points, const Curves& prior,
                        std::string source);

// TOML: a section per class, checked like a machine's file.
std::string to_toml(const Curves& curves);
Curves curves_from_toml(std::string_view text, std::string_view source);

}  // namespace pleat::cost
