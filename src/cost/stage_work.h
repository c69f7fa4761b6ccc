// What a stage costs: its kernel says so (kernels/contract.h), the program gives the shapes.
#pragma once

#include "kernels/contract.h"
#include "program/program.h"

namespace pleat::cost {

// Routed values have rows for the worst case that is planned for. Planned: all of them count, as a kernel
// that computes on every row does. Balanced: those that even routing fills.
enum class RoutedRows : uint8_t { Planned, Balanced };

// `load`: with Balanced, so many times these rows, up to those that are planned.
kernels::Work stage_work(const program::Program& program, const program::Stage& stage, RoutedRows rows,
                         double load = 1);

// Bytes its kernel needs on a GPU beside its arguments, with all planned rows.
int64_t stage_scratch(const program::Program& program, const program::Stage& stage);

}  // namespace pleat::cost
