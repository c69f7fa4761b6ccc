// Tells by the first bytes of a file that it is no text, and how to make text of it. Nothing is guessed by
// name: a table that begins as a Parquet file is one, whatever it is called.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace pleat::data {

// As many bytes as a decision looks at.
inline constexpr size_t kKindBytes = size_t{1} << 16;

enum class Wrapped { No, Gzip, Zstd };  // what the bytes were taken out of

// Throws when `head`, the first kKindBytes bytes of the text of `path` or all of them, cannot be text: names
// the kind, and the one command that converts it.
void refuse_unless_text(std::string_view head, const std::string& path, Wrapped wrapped = Wrapped::No);

// Of a file whose first line begins a JSON array, or an object that goes on over further lines: the command
// that gives one object per line. Empty for any other first line.
std::string advice_for_json(std::string_view first_line, const std::string& path);

// `text` as one word of a shell.
std::string shell_word(const std::string& text);

}  // namespace pleat::data
