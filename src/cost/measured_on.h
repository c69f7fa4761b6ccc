// Which machine's rates measured times are compared with, and those times on another machine.
#pragma once

#include <vector>

#include "cost/cost_file.h"
#include "cost/curves.h"
#include "cost/machine.h"

namespace pleat::cost {

// Where costs were measured, for people who name no machine: that of the binary with their GPU, or its CPU.
Machine default_machine(const CostMachine& costs);

// As a rank had it whose stages were measured: `asked` where it is a CPU, of as many cores as that rank had threads, or has
// that GPU; else the machine of the binary that has it. Throws where the kinds differ and where nobody described the GPU.
Machine measured_on(const CostMachine& costs, const Machine& asked);

// Times of entries on `target`: as many times as long as their formulas say it takes there.
std::vector<CostEntry> carried(std::vector<CostEntry> entries, const Machine& source, const Machine& target,
                               const Curves& curves);

}  // namespace pleat::cost
