// Machines as files: TOML with the sections [machine], [processor], [node], [network] and [sharing]. Checked like a
// configuration: an unknown key is an error that names the nearest, every number has a range, none that is needed may be
// missing. The files of machines/ are part of the binary.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cost/machine.h"

namespace pleat::cost {

Machine machine_from_toml(std::string_view text, std::string_view source);

// The name of a machine of the binary ("h200"), or the path of a file (ends in .toml, or has a slash).
Machine find_machine(const std::string& name_or_path);
// The one of the binary that has a GPU of that name (has_gpu).
std::optional<Machine> machine_of_gpu(std::string_view driver_name);
inline constexpr const char* kDefaultGpu = "h200";
inline constexpr const char* kDefaultCpu = "cpu";

struct ShippedMachine {
  std::string_view name, text;
};
const std::vector<ShippedMachine>& shipped_machines();  // by name

// The keys as a table for people: path, unit and range, meaning.
struct MachineKey {
  std::string path, meaning;
  double low = 0, high = 0;
  bool needed = true, whole = false;  // whole: an integer
};
const std::vector<MachineKey>& machine_keys();

}  // namespace pleat::cost
