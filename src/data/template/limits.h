// What a template may cost. A template is a file somebody else wrote: each of these is checked while it is
// parsed or run, and the error names the limit. Templates of published models stay far below.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pleat::data {

struct TemplateLimits {
  size_t source_bytes = size_t{1} << 20;
  int nesting = 100;          // of statements and of expressions in the file
  int running_nesting = 500;  // of statements, expressions and macro calls while it runs
  int value_nesting = 100;    // of lists and maps it puts together
  // Statements, expressions, rounds of loops, items of lists looked at or made, and a share of one for every
  // byte that is read or written: a step is about a tenth of a microsecond.
  int64_t steps = 20'000'000;
  // Of all renderings of one conversation: telling where answers begin may take two for each of them.
  int64_t conversation_steps = 100'000'000;
  size_t text_bytes = 256u << 20;  // of all texts it puts together in one rendering
  size_t value_bytes = 64u << 20;  // of the texts, lists and maps it holds at one time
  int64_t range_items = 100'000;   // of range(), as in Jinja's sandbox
};

}  // namespace pleat::data
