// Two runs of one model side by side, class by class.
#pragma once

#include "model/parameter.h"
#include "verify/layout_run.h"

namespace pleat::verify {

struct ClassRow {
  std::string parameter_class;
  double gradient_ratio = 1;        // |layout's gradient| / |reference's|, of the worst step
  double gradient = 0, weight = 0;  // largest norm-wise difference of a tensor, over all steps
  double first_gradient = 0;        // of the first step, before any difference can have spread
  double first_ratio = 1;
  std::string worst_gradient, worst_weight, worst_first;
};

struct Comparison {
  std::vector<ClassRow> classes;
  double loss = 0, norm = 0, clip = 0, aux = 0, moments = 0;  // largest relative differences
  double first_loss = 0, first_norm = 0, first_aux = 0;       // of the first step
  bool load_equal = true;
  bool bias_equal = true;  // of the experts, bit for bit: what moves it are integers
  bool bitwise = true;     // gradients, weights, moments, loss and norm

  double worst() const;
  // Empty when every difference is at most `bound`; else what is wrong in the first step that shows it.
  std::string verdict(double bound) const;
};

double length_of(const Tensor& t);  // its euclidean norm

Comparison compare(const LayoutRun& reference, const LayoutRun& run,
                   const std::vector<model::Parameter>& table);

}  // namespace pleat::verify
