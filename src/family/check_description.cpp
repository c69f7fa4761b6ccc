#include "family/check_description.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace pleat::family {
namespace {

void check_dtype(const ConfigReader& reader, const char* key) {
  constexpr std::array kKnown = {"float32", "bfloat16", "float16", "float64"};
  if (!reader.has(key)) return;
  const std::string given = reader.text(key, "");
  const std::string name = given.starts_with("torch.") ? given.substr(6) : given;
  if (std::find(kKnown.begin(), kKnown.end(), name) == kKnown.end())
    base::fail("{}: {} = \"{}\" is not supported; known are {}", reader.source(), key, given.substr(0, 60),
               fmt::join(kKnown, ", "));
}

}  // namespace

void check_description(const ConfigReader& reader, int64_t num_layers) {
  check_dtype(reader, "dtype");
  check_dtype(reader, "torch_dtype");
  for (const std::string& name : reader.texts("architectures"))
    if (!name.ends_with("ForCausalLM"))
      base::fail("{}: architectures names \"{}\"; needed is a causal language model, \"...ForCausalLM\"",
                 reader.source(), name.substr(0, 60));
  const std::vector<std::string> layers = reader.texts("layer_types");
  for (const std::string& type : layers)
    if (type != "full_attention" && type != "sliding_attention")
      base::fail("{}: layer_types has \"{}\"; known are full_attention and sliding_attention",
                 reader.source(), type.substr(0, 60));
  if (!layers.empty() && static_cast<int64_t>(layers.size()) != num_layers)
    base::fail("{}: layer_types has {} entries for {} layers", reader.source(), layers.size(), num_layers);
}

}  // namespace pleat::family
