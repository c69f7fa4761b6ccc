// How far a layout and one rank may be apart, given how far one rank is from float64: kind by kind of tensor.
#pragma once

#include "verify/rounding_bound.h"

namespace pleat::verify {

struct PrecisionRow {
  std::string what;                             // "gradients of experts"
  std::string worst;                            // the tensor nearest to its bound, and its step
  double difference = 0, noise = 0, bound = 0;  // of that tensor, relative to its length; noise 0: none taken
  double moved = 0;                             // of the bound: what weights that are apart may do
  bool passed() const { return difference <= bound; }
};

// One rank in float64 and in the precision verified, the layout in it; what a relative change of the weights
// does.
struct Runs {
  const LayoutRun &wide, &one, &layout;
  const Conditioning& kappa;
  std::vector<double> apart;  // per step: how far the weights it begins with are, between one rank and layout
};

// Tensors of one kind (the same in every layer and microbatch) have one noise in a step: the largest met. A kind of a few
// numbers may happen to be right: its noise is at least what the roundings seen in its row, those of the kinds of many
// numbers, make of it (docs/numerics.md section 10).
class Noise {
 public:
  explicit Noise(const Runs& runs) : runs_(runs) {}

  using Tensors = std::map<std::string, Tensor> StepResults::*;
  // A tensor of the step, by its name in all runs and in the conditioning, in equal pieces that are compared one by
  // one, each relative to its length; one shorter than the others counts as long as they are in the mean.
  void add(const std::string& row, const std::string& name, size_t step, Tensors of, size_t num_pieces = 1);

  // A number of the step, made of many tokens: it may happen to be right, so its noise is at least the mean of
  // `num_tokens` errors of the size of what it is made from, an earlier row.
  void add_number(const std::string& row, size_t step, const std::string& what, double wide, double one,
                  double layout, const std::string& from, int64_t num_tokens);

  // The bound over the noise, for a layout of this many ranks.
  static double factor(int64_t num_ranks);
  // Of every row the kind nearest to its bound.
  std::vector<PrecisionRow> rows(double factor) const;

 private:
  struct Found {
    std::string worst;
    double difference = 0, noise = 0, moved = 0;  // moved: what weights that are apart may do
    size_t numbers = 0;
    double carries = 0;  // noise / roundings (rounding_bound.h, carried); 0: has its noise otherwise
  };
  struct Item : Found {
    std::string row;
    double roundings = 0;  // the largest noise / carries
  };
  // Of kinds of many numbers of a row in a step, in the mean; where it has none, of all rows.
  double roundings_of(const std::string& row, size_t step) const;
  double noise_of(const Item& item, size_t step) const;
  void add_found(const std::string& row, const std::string& kind, size_t step, const Found& found);

  const Runs& runs_;
  std::map<std::pair<std::string, size_t>, Item> items_;
  std::vector<std::pair<std::string, size_t>> order_;
};

double apart_of(const Tensor& a, const Tensor& b);  // euclidean; infinity where a number is not finite

}  // namespace pleat::verify
