# The files of machines/ as text inside the binary: `--machine h200` works wherever it runs.
function(pleat_embed_machines target)
  file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/machines/*.toml)
  set(entries "")
  foreach(file ${files})
    get_filename_component(name ${file} NAME_WE)
    file(READ ${file} text)
    string(APPEND entries "    {\"${name}\", R\"machine(${text})machine\"},\n")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  endforeach()
  set(out ${CMAKE_CURRENT_BINARY_DIR}/shipped_machines.cpp)
  file(CONFIGURE OUTPUT ${out} @ONLY CONTENT [[
#include "cost/machine_file.h"

namespace pleat::cost {
const std::vector<ShippedMachine>& shipped_machines() {
  static const std::vector<ShippedMachine> all = {
@entries@  };
  return all;
}
}  // namespace pleat::cost
]])
  target_sources(${target} PRIVATE ${out})
endfunction()
