#include "program/value_name.h"

#include <fmt/format.h>

#include <charconv>

namespace pleat::program {
namespace {

// Takes "TAGn." off the front; -1 where it is not there.
int take_number(std::string_view& name, std::string_view tag) {
  if (!name.starts_with(tag)) return -1;
  int number = -1;
  const char* first = name.data() + tag.size();
  const auto [end, error] = std::from_chars(first, name.data() + name.size(), number);
  if (error != std::errc{} || *first == '-' || end + 1 >= name.data() + name.size() || *end != '.') return -1;
  name.remove_prefix(static_cast<size_t>(end + 1 - name.data()));
  return number;
}

}  // namespace

ValueName tagged(std::string_view what, int microbatch, int layer, int chunk) {
  std::string text;
  if (microbatch >= 0) text += fmt::format("mb{}.", microbatch);
  if (chunk >= 0) text += fmt::format("c{}.", chunk);
  if (layer >= 0) text += fmt::format("L{}.", layer);
  text += what;
  return {std::move(text), microbatch, layer};
}

NameParts read_name(std::string_view name) {
  NameParts out;
  out.layer = take_number(name, "layers.");
  if (out.layer < 0) {
    out.microbatch = take_number(name, "mb");
    take_number(name, "c");
    out.layer = take_number(name, "L");
  }
  out.what = name.substr(0, name.find('['));
  return out;
}

}  // namespace pleat::program
