// What the modules of a layer save: values their forward side made or was given and their backward side reads.
//
// By value, not by module: a value belongs to every module whose backward reads it, so the output of attention is saved
// by core_attention and by attn_out. What a backward makes of such a value alone, rows gathered again or codes turned, is
// looked through. What is recomputed is not saved; what the recomputation reads is, by the module it belongs to. What
// several layers save, such as the table of rotations, is none of theirs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "program/program.h"

namespace pleat::schedule {

// In the order of a layer's forward; without "layer", which is all of them and whatever else the layer saves.
const std::vector<std::string_view>& offload_modules();

struct SavedValue {
  program::ValueId value = program::kNoValue;  // no view
  int microbatch = -1, chunk = 0, layer = -1;
  std::vector<size_t> modules;         // that save it, of those asked for, ascending
  program::StageId last_forward = -1;  // the last stage of the forward that uses it and is no message
  program::StageId first_backward = -1;
};

// Of the layers (empty: all), by microbatch, chunk, layer, first module. `modules`: in the order of offload_modules(), or
// "layer" alone. Only values on the device that the forward alone writes and the backward alone reads afterwards, and
// none that the host reads.
std::vector<SavedValue> saved_values(const program::Program& program, const std::vector<std::string>& modules,
                                     const std::vector<bool>& layers);

}  // namespace pleat::schedule
