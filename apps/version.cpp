#include "version.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "build_facts.h"
#include "comm/mpi/mpi_world.h"
#include "comm/nccl/nccl_group.h"
#include "device/cpu/blas.h"

namespace pleat::apps {
namespace {

constexpr char kAbsent[] = "not built in";

// OpenBLAS is loaded at run time, so this machine decides which one answers.
std::string blas_or_why_not() {
  try {
    return device::blas_description();
  } catch (const base::Error& e) {
    return fmt::format("none: {}", e.what());
  }
}

std::string cuda_built_in() {
  const std::string cuda = build_facts().cuda;
  return cuda.empty() ? kAbsent : cuda;
}

}  // namespace

std::string version_text() {
  const BuildFacts& f = build_facts();
  return fmt::format(
      "pleat {}\ncommit    {}\ncompiled  by {}, for {}\nBLAS      {}\nCUDA      {}\nMPI       {}\nNCCL      "
      "{}",
      f.version, f.commit, f.compiler, f.march, blas_or_why_not(), cuda_built_in(), comm::mpi_description(),
      comm::nccl_description());
}

std::string version_json() {
  const BuildFacts& f = build_facts();
  const nlohmann::ordered_json out = {{"version", f.version},           {"commit", f.commit},
                                      {"compiler", f.compiler},         {"march", f.march},
                                      {"blas", blas_or_why_not()},      {"cuda", cuda_built_in()},
                                      {"mpi", comm::mpi_description()}, {"nccl", comm::nccl_description()}};
  return out.dump(1);
}

void add_version(CLI::App& app) {
  auto* json = app.add_flag("--json")->group("");
  auto* version = app.set_version_flag(
      "--version", [json] { return json->count() > 0 ? version_json() : version_text(); },
      "Version, commit and what is built in; with --json machine-readable");
  json->needs(version);
}

}  // namespace pleat::apps
