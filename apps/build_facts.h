// What the build knows about itself. The definition is written at every build (cmake/build_facts.cmake), so a
// new commit recompiles one small file.
#pragma once

namespace pleat::apps {

struct BuildFacts {
  const char* version;  // "0.2.0"
  const char*
      commit;  // twelve digits, " with local changes" where there are some; "not known" outside a checkout
  const char* compiler;  // "GNU 12.2.0, Release"
  const char* march;     // what -march got: "native" or a baseline such as "x86-64-v3"
  const char* cuda;      // "13.0 for sm_90a"; empty without CUDA
};
const BuildFacts& build_facts();

}  // namespace pleat::apps
