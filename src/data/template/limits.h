// What a template may cost. A template is a file somebody else wrote: each of these is checked while it is
// parsed or run, and the error names the limit. Templates of published models stay far below.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pleat::data {

struct TemplateLimits {
  size_t source_bytes = size_t{1} << 20;
  int nesting = 100;               // of statements and of expressions in the file
  int running_nesting = 500;       // of statements, expressions and macro calls while it runs
  int value_nesting = 100;         // of lists and maps it puts together
  int64_t steps = 20'000'000;      // statements, expressions, rounds of loops, items of lists
  size_t text_bytes = 256u << 20;  // of all texts it puts together in one rendering
  int64_t range_items = 100'000;   // of range(), as in Jinja's sandbox
};

}  // namespace pleat::data
