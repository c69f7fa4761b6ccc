// config.json of a model folder: any bytes give a config that validates, or an error.
#include <cstdint>
#include <string>

#include "base/error.h"
#include "family/family.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    pleat::family::parse_model_config(std::string(reinterpret_cast<const char*>(data), size), "config.json");
  } catch (const pleat::base::Error&) {
  }
  return 0;
}
