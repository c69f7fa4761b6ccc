// What values are called. The builder writes names by these rules and the text form reads them back; everyone
// else takes microbatch and layer from the fields of a value.
//
//   mb3.L8.attn_normed   of a microbatch in a layer; mb3.c1.x_in: of a chunk
//   L8.load              of a layer, over all microbatches
//   layers.8.attn.qkv.weight   a parameter, as it is called in files, and what belongs to it
//   loss                 of the step
#pragma once

#include <string>
#include <string_view>

#include "program/program.h"

namespace pleat::program {

// A name with what it says.
struct ValueName {
  ValueName(std::string name) : text(std::move(name)) {}  // of the step
  ValueName(const char* name) : text(name) {}
  ValueName(std::string name, int of_microbatch, int of_layer)
      : text(std::move(name)), microbatch(of_microbatch), layer(of_layer) {}
  std::string text;
  int microbatch = -1, layer = -1;
};
// Each of the numbers may be absent (-1).
ValueName tagged(std::string_view what, int microbatch, int layer, int chunk = -1);

struct NameParts {
  int microbatch = -1, layer = -1;
  std::string_view what;  // without numbers and without the rows it covers: "logits" of "mb0.logits[3]"
};
NameParts read_name(std::string_view name);

// What a value is, whatever its place: the same for all layers and microbatches.
inline std::string_view what_of(const Value& value) { return read_name(value.name).what; }

}  // namespace pleat::program
