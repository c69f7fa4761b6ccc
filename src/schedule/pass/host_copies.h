// What a GPU's host writes before a step and reads behind it lies in pinned memory, and its way to the device and back is
// part of the step: one copy per input on lane h2d, ahead of who reads it, one per result on lane d2h, behind who wrote
// it. The host's value keeps the name; the device's is called NAME.device. Exact: bytes are copied.
#pragma once

#include "program/program.h"

namespace pleat::schedule {

bool has_host_values(const program::Program& program);  // inputs or results on the device
program::Program host_copies(program::Program program);

}  // namespace pleat::schedule
