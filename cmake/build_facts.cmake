# Writes what a build knows about itself, run at every build: cmake -DOUT=... -DSOURCE=... -P build_facts.cmake
# The file is touched only when it changes, so that a commit recompiles this one file and nothing else.
set(commit "not known")
find_program(git git)
if(git)
  execute_process(COMMAND ${git} -C ${SOURCE} rev-parse --short=12 HEAD
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(commit ${found})
    execute_process(COMMAND ${git} -C ${SOURCE} status --porcelain --untracked-files=no
      OUTPUT_VARIABLE changes ERROR_QUIET)
    if(changes)
      string(APPEND commit " with local changes")
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT ${OUT} @ONLY CONTENT [[
// Written by cmake/build_facts.cmake.
#include "build_facts.h"

namespace pleat::apps {

const BuildFacts& build_facts() {
  static const BuildFacts facts = {"@VERSION@", "@commit@", "@COMPILER@", "@MARCH@", "@CUDA@"};
  return facts;
}

}  // namespace pleat::apps
]])
