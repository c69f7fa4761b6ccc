// Regular expressions of other libraries, written again for PCRE2 so that they mean the same.
//
// Hugging Face's files hold Oniguruma patterns, tiktoken's tables hold patterns of Rust's fancy-regex. The
// parts pre-tokenizers use are nearly common; where they are not (\s, \w, \p{...} by Unicode version,
// scripts, ^ and $), the pattern is rewritten; what could mean something else and is not rewritten is refused
// by name.
#pragma once

#include <string>
#include <string_view>

namespace pleat::data {

enum class PatternDialect { Oniguruma, Rust };

// `where` stands in front of error messages.
std::string to_pcre2(std::string_view pattern, PatternDialect dialect, std::string_view where);

}  // namespace pleat::data
