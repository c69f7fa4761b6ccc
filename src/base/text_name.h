// What the name of a file says about the text in it. The one place that knows the endings.
#pragma once

#include <string_view>

namespace pleat::base {

enum class TextKind {
  None,   // nothing: it may be anything
  Text,   // .txt
  Jsonl,  // .jsonl, .ndjson, .json: one JSON object per line
};
enum class Compression { None, Gzip, Zstd };  // .gz, .zst behind the ending above

struct TextName {
  TextKind kind = TextKind::None;
  Compression compression = Compression::None;
  bool operator==(const TextName&) const = default;
};

inline TextName text_name(std::string_view path) {
  TextName name;
  const auto take = [&](std::string_view ending) {
    if (!path.ends_with(ending)) return false;
    path.remove_suffix(ending.size());
    return true;
  };
  if (take(".gz"))
    name.compression = Compression::Gzip;
  else if (take(".zst"))
    name.compression = Compression::Zstd;
  if (take(".txt"))
    name.kind = TextKind::Text;
  else if (take(".jsonl") || take(".ndjson") || take(".json"))
    name.kind = TextKind::Jsonl;
  return name;
}

inline bool names_text(std::string_view path) { return text_name(path).kind != TextKind::None; }

}  // namespace pleat::base
