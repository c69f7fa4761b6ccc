# Several files of a folder compiled as one (PLEAT_JOIN): headers are read and templates made once for all of them,
# which is most of what a build takes. In return a name in an unnamed namespace stands once per folder, and a changed
# file is compiled with its neighbours; the preset `each` compiles file by file, for whoever edits.
#
# CMake's own UNITY_BUILD does the same, but writes below each build folder, where a compiler cache takes the same
# code of two presets for two things. Here presets share build/joined.
set(PLEAT_JOIN_FILES 12 CACHE STRING "Files compiled as one, at most")
set(PLEAT_JOIN_DIR ${CMAKE_BINARY_DIR}/joined CACHE PATH "Where the files that include them are written")

# pleat_join(OUT NAME SOURCE...): OUT is what to compile in place of the sources.
function(pleat_join out name)
  set(sources ${ARGN})
  list(FILTER sources INCLUDE REGEX "[.]cpp$")
  set(compiled ${ARGN})
  list(FILTER compiled EXCLUDE REGEX "[.]cpp$")
  list(LENGTH sources count)
  if(NOT PLEAT_JOIN OR count LESS 2)
    set(${out} ${ARGN} PARENT_SCOPE)
    return()
  endif()
  list(SORT sources)
  # Batches of equal length, no longer than allowed.
  math(EXPR batches "(${count} + ${PLEAT_JOIN_FILES} - 1) / ${PLEAT_JOIN_FILES}")
  math(EXPR length "(${count} + ${batches} - 1) / ${batches}")
  set(start 0)
  while(start LESS count)
    list(SUBLIST sources ${start} ${length} batch)
    set(text "// Written by cmake/join.cmake.\n")
    foreach(source ${batch})
      file(RELATIVE_PATH relative ${PLEAT_JOIN_DIR} ${source})
      string(APPEND text "#include \"${relative}\"\n")
    endforeach()
    string(SHA1 hash "${text}")  # presets that join other files write another file
    string(SUBSTRING ${hash} 0 8 hash)
    set(joined ${PLEAT_JOIN_DIR}/${name}_${hash}.cpp)
    if(NOT EXISTS ${joined})
      file(WRITE ${joined} "${text}")
    endif()
    list(APPEND compiled ${joined})
    math(EXPR start "${start} + ${length}")
  endwhile()
  set(${out} ${compiled} PARENT_SCOPE)
endfunction()
