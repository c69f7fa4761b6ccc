// The one ownership record per parameter. Reduction, norm, clipping, optimizer sharding, checkpointing,
// import and export all read this and nothing else, so that they cannot disagree.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pleat::model {

// What a user freezes, decays or gives its own learning rate.
enum class ParameterClass : uint8_t {
  Embedding,
  Attention,
  Norm,
  Mlp,
  Router,
  Experts,
  SharedExperts,
  Head,
  Mtp
};
const char* name_of(ParameterClass parameter_class);

// Axes of the two rank meshes; one rank is size 1 on all of them.
enum class Axis : uint8_t { Tensor, Context, Data, Expert, ExpertTensor, ExpertData, Pipeline };

// A named slice of one dimension: q | k | v inside qkv, gate | up inside an MLP's first matrix.
struct Block {
  std::string name;
  int64_t dim = 0, begin = 0, size = 0;
};

struct Shard {
  Axis axis{};
  int64_t dim = 0;
};

enum class Init : uint8_t { Normal, Ones, Zeros };

struct Parameter {
  std::string name;            // logical name; files hold the logical tensor only
  std::vector<int64_t> shape;  // logical shape
  ParameterClass parameter_class{};
  int layer = -1;                      // -1: outside the layers
  std::vector<Block> blocks;           // physical order of the logical pieces
  std::vector<Shard> sharded;          // which axis cuts which dimension
  std::vector<Axis> replicated;        // every rank along these holds the same numbers
  std::vector<Axis> gradient_partial;  // the gradient is a sum over these
  bool pads = false;                   // ranks that cut it may hold rows past its end, which stay zero
  std::string tied_to;  // uses the weight of that parameter; has its own gradient, but no own weight
  bool is_bias = false;
  bool frozen = false;  // optimizer.freeze names its class: no update, no part in the norm
  int64_t unit = 1;  // elements of a rank's part that one owner of its states holds together (model/state.h)
  Init init = Init::Normal;
  double init_std = 0;
};

int64_t num_elements(const Parameter& parameter);

}  // namespace pleat::model
