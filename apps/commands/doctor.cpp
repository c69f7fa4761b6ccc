#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "base/counted.h"
#include "base/error.h"
#include "comm/exercise.h"
#include "comm/gpu_choice.h"
#include "comm/local/local_world.h"
#include "comm/mpi/mpi_world.h"
#include "comm/nccl/nccl_group.h"
#include "comm/process/run_rank.h"
#include "command.h"
#include "device/cpu/blas.h"
#include "device/cpu/gemm_rate.h"
#include "device/cuda/chosen.h"
#include "device/cuda/context.h"
#include "device/cuda/cuda.h"
#include "doctor_exchange.h"
#include "layout/from_config.h"
#include "report/table.h"
#include "schedule/ranks.h"

namespace pleat::apps {
namespace {

struct DoctorArguments {
  int ranks = 0;
  bool json = false;
  ConfigArgument config;  // without a path: none
  comm::ExerciseSize size;
  comm::Options options;
};

// What the ranks found out together.
struct Exchanges {
  std::vector<DoctorResult> groups;
  std::vector<RankGpu> gpus;  // by rank; empty where they were not exercised
  std::string remark;         // why not, where there are some
};

struct Machine {
  int cores = 0;
  double memory_gib = 0;
  std::string blas, mpi;
  double gemm_f32 = 0, gemm_f64 = 0;  // FLOP/s
  std::string gpu, gpu_libraries;     // or why there is none
  std::string gpu_place;              // which of them this is
  double gpu_copy = 0, gpu_gemm = 0;  // bytes/s, FLOP/s; 0: no GPU
  int64_t gpu_context = 0;            // bytes in use before anything is allocated
};

void look_at_gpu(Machine& m, const comm::World& world) {
  std::string why;
  const int num_gpus = device::cuda::num_devices(&why);
  if (num_gpus == 0) {
    m.gpu = "none: " + why;
    return;
  }
  const int gpu = comm::gpu_of(world, num_gpus);
  device::cuda::choose_device(gpu);
  m.gpu_place = fmt::format("GPU {} of {}, for local rank {}", gpu, num_gpus, world.local_rank);
  const device::cuda::Facts f = device::cuda::facts();
  m.gpu =
      fmt::format("{}, compute capability {}.{}, {} SMs, {:.1f} GiB ({:.1f} free)", f.name, f.major, f.minor,
                  f.num_sms, double(f.memory_bytes) / (1 << 30), double(f.free_bytes) / (1 << 30));
  m.gpu_libraries =
      fmt::format("driver for CUDA {}.{}, runtime {}.{}, cuBLASLt {}, cuDNN {}", f.driver / 1000,
                  f.driver % 1000 / 10, f.runtime / 1000, f.runtime % 1000 / 10, f.cublas, f.cudnn);
  m.gpu_context = device::cuda::context_bytes();
  m.gpu_copy = device::cuda::measure_copy_rate();
  m.gpu_gemm = device::cuda::measure_gemm_rate();
}

Machine look(const comm::World& world) {
  Machine m;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  m.cores = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  m.memory_gib =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 30);
  m.blas = device::blas_description();
  m.mpi = comm::mpi_description();
  device::Pool pool(m.cores);
  m.gemm_f32 = device::measure_gemm_rate(pool, tensor::Dtype::F32);
  m.gemm_f64 = device::measure_gemm_rate(pool, tensor::Dtype::F64);
  look_at_gpu(m, world);
  return m;
}

std::vector<DoctorGroup> groups_for(const DoctorArguments& a, const std::optional<config::Config>& config,
                                    int size, int rank) {
  if (a.config.path.empty()) return world_and_pairs(size, rank);
  return groups_of_layout(*config, size, rank);
}

// Why the ranks of this run cannot exercise their GPUs, the same on all; "": they can.
std::string no_gpus(comm::Endpoint& endpoint, const comm::World& world, RankGpu& mine) {
  if (!comm::nccl_is_built_in()) return "NCCL is " + comm::nccl_description();
  std::string why;
  if (device::cuda::num_devices(&why) > 0) mine = take_gpu_of_rank(world);
  const std::vector<RankGpu> all = gpus_of_ranks(endpoint, mine);
  for (size_t r = 0; r < all.size(); ++r)
    if (all[r].gpu < 0) return fmt::format("rank {} has none{}", r, why.empty() ? "" : ": " + why);
  try {
    comm::require_own_gpu(endpoint, mine.bus);
  } catch (const base::Error& e) {
    return e.what();
  }
  return "";
}

// Processes: over what carries host memory, and on GPUs where the configuration has them or, without one, where every
// rank has its own.
Exchanges exercise_processes(comm::Endpoint& endpoint, const comm::World& world, const DoctorArguments& a) {
  std::optional<config::Config> config;
  if (!a.config.path.empty()) config = a.config.resolved();
  const std::vector<DoctorGroup> groups = groups_for(a, config, endpoint.size(), endpoint.rank());
  if (config && endpoint.rank() == 0) note_refusal(*config, schedule::layout_of(*config, endpoint.size()));
  Exchanges out;
  RankGpu mine;
  const bool needed = config && config->device.kind == "cuda";
  const std::string why = config && !needed ? "device.kind is \"cpu\"" : no_gpus(endpoint, world, mine);
  if (needed && !why.empty())
    base::fail_with(base::ExitCode::Hardware, "device.kind = \"cuda\", but GPUs cannot be used: {}", why);
  out.groups = exercise_groups(endpoint, groups, comm::Buffers::Host, a.size);
  if (!why.empty()) {
    out.remark = why;
    return out;
  }
  for (DoctorResult& r : exercise_groups(endpoint, groups, comm::Buffers::Device, a.size))
    out.groups.push_back(std::move(r));
  out.gpus = gpus_of_ranks(endpoint, mine);
  return out;
}

std::string gpu_table(const std::vector<RankGpu>& gpus) {
  report::Table table({{"rank", report::Align::Right},
                       {"machine"},
                       {"GPU"},
                       {"PCI"},
                       {"reaches the memory of"},
                       {"threads"}});
  for (size_t r = 0; r < gpus.size(); ++r)
    table.add_row({fmt::format("{}", r), gpus[r].machine, fmt::format("{} {}", gpus[r].gpu, gpus[r].name),
                   gpus[r].bus, gpus[r].reaches.empty() ? "no other" : gpus[r].reaches, gpus[r].threads});
  return table.text();
}

int show(const DoctorArguments& a, const comm::World& world, const std::string& carrier, int ranks,
         const Exchanges& exchanges) {
  const Machine m = look(world);
  bool pass = true;
  nlohmann::json out = {{"machine",
                         {{"cores", m.cores},
                          {"memory_gib", m.memory_gib},
                          {"blas", m.blas},
                          {"gemm_f32_gflops", m.gemm_f32 / 1e9},
                          {"gemm_f64_gflops", m.gemm_f64 / 1e9},
                          {"gpu", m.gpu},
                          {"gpu_place", m.gpu_place},
                          {"gpu_libraries", m.gpu_libraries},
                          {"gpu_context_bytes", m.gpu_context},
                          {"gpu_copy_tb_per_s", m.gpu_copy / 1e12},
                          {"gpu_bf16_tflops", m.gpu_gemm / 1e12},
                          {"mpi", m.mpi},
                          {"nccl", comm::nccl_description()}}},
                        {"launcher", world.launcher},
                        {"carrier", carrier},
                        {"ranks", ranks},
                        {"bytes_per_rank", a.size.bytes},
                        {"groups", nlohmann::json::array()}};
  report::Table table({{"group"},
                       {"operation"},
                       {"latency us", report::Align::Right},
                       {"GB/s", report::Align::Right},
                       {"answer"}});
  for (const DoctorResult& group : exchanges.groups) {
    const bool gpu = group.buffers == comm::Buffers::Device;
    nlohmann::json operations = nlohmann::json::array();
    for (const comm::Exercised& e : group.operations) {
      pass = pass && e.fault.empty();
      operations.push_back({{"name", e.operation},
                            {"latency_us", e.latency_seconds * 1e6},
                            {"gb_per_s", e.bytes_per_second / 1e9},
                            {"fault", e.fault}});
      table.add_row({fmt::format("{} of {}{}", group.name, group.size, gpu ? " GPUs" : ""), e.operation,
                     fmt::format("{:.1f}", e.latency_seconds * 1e6),
                     e.bytes_per_second > 0 ? fmt::format("{:.2f}", e.bytes_per_second / 1e9) : "",
                     e.fault.empty() ? "right" : e.fault});
    }
    out["groups"].push_back({{"name", group.name},
                             {"size", group.size},
                             {"over", gpu ? "NCCL" : carrier},
                             {"gpu_bytes", group.device_bytes},
                             {"operations", operations}});
    if (!gpu) out["groups"].back()["same_ranks_as"] = group.also;  // said once, for both kinds of buffers
  }
  for (size_t r = 0; r < exchanges.gpus.size(); ++r) {
    const RankGpu& g = exchanges.gpus[r];
    out["gpus"].push_back({{"rank", r},
                           {"machine", g.machine},
                           {"gpu", g.gpu},
                           {"name", g.name},
                           {"pci", g.bus},
                           {"reaches", g.reaches},
                           {"threads", g.threads}});
  }
  out["pass"] = pass;
  if (a.json) {
    fmt::print("{}\n", out.dump(2));
  } else {
    fmt::print(
        "cores     {}\nmemory    {:.1f} GiB\nBLAS      {}\nproducts  {:.1f} GFLOP/s f32, {:.1f} GFLOP/s f64, "
        "on {}\n",
        m.cores, m.memory_gib, m.blas, m.gemm_f32 / 1e9, m.gemm_f64 / 1e9, base::counted(m.cores, "thread"));
    fmt::print("GPU       {}\n", m.gpu);
    if (m.gpu_gemm > 0)
      fmt::print(
          "          {}\n          {}\n          copy {:.2f} TB/s, bf16 products {:.0f} TFLOP/s, measured "
          "now\n"
          "          {:.0f} MiB in use by context and libraries, before anything is allocated\n",
          m.gpu_place, m.gpu_libraries, m.gpu_copy / 1e12, m.gpu_gemm / 1e12,
          double(m.gpu_context) / (1 << 20));
    fmt::print("MPI       {}\nNCCL      {}\nlauncher  {}\nranks     {} over {}\n\n", m.mpi,
               comm::nccl_description(), world.launcher, ranks, carrier);
    if (!exchanges.gpus.empty()) fmt::print("{}\n", gpu_table(exchanges.gpus));
    if (!exchanges.remark.empty()) fmt::print("GPUs are not exercised: {}\n\n", exchanges.remark);
    std::string also;
    for (const DoctorResult& group : exchanges.groups)
      if (!group.also.empty() && group.buffers == comm::Buffers::Host)
        also += fmt::format("{} has the ranks of {}\n", group.name, group.also);
    fmt::print("{}\n{}latency: 8 bytes per rank; GB/s: what one rank brings, {} bytes per rank\n{}\n",
               table.text(), also, a.size.bytes,
               pass ? "PASS: every answer was right" : "FAIL: see the table");
  }
  return static_cast<int>(pass ? base::ExitCode::Done : base::ExitCode::Hardware);
}

int run_doctor(const DoctorArguments& a) {
  const comm::World world = comm::read_world();
  Exchanges exchanges;
  if (world.launcher != "none") {
    if (a.ranks > 0)
      base::fail("--ranks {} asks for thread ranks, but {} started {} processes; leave one out", a.ranks,
                 world.launcher, world.size);
    int code = 0;
    comm::run_process_rank(world, a.options, [&](comm::Endpoint& endpoint, int) {
      exchanges = exercise_processes(endpoint, world, a);
      // The others wait for the verdict, so that all processes end with the same code.
      std::vector<int> all(static_cast<size_t>(endpoint.size()));
      std::iota(all.begin(), all.end(), 0);
      const auto verdict = endpoint.group("verdict", all);
      if (endpoint.rank() == 0)
        code = show(a, world, name_of(comm::carrier_of(world)), endpoint.size(), exchanges);
      verdict->all_reduce("doctor verdict", std::span(&code, 1), comm::Reduce::Max);
    });
    return code;
  }
  std::optional<config::Config> config;
  if (!a.config.path.empty()) config = a.config.resolved();
  const int64_t least = config ? layout::least_ranks(*config) : 4;
  const int ranks = a.ranks > 0 ? a.ranks : static_cast<int>(std::max<int64_t>(least, config ? 2 : 4));
  if (config) note_refusal(*config, schedule::layout_of(*config, ranks));
  comm::LocalWorld local(ranks, a.options);
  comm::run_ranks(local, [&](int rank) {
    const std::unique_ptr<comm::Endpoint> endpoint = local.endpoint(rank);
    std::vector<DoctorResult> mine =
        exercise_groups(*endpoint, groups_for(a, config, ranks, rank), comm::Buffers::Host, a.size);
    if (rank == 0) exchanges.groups = std::move(mine);
  });
  return show(a, world, "threads", ranks, exchanges);
}

}  // namespace

void add_doctor(CLI::App& command, Action& chosen) {
  CLI::App* c = &command;
  auto a = std::make_shared<DoctorArguments>();
  a->options.timeout_seconds = 60;
  a->options.check = true;
  c->add_option("--ranks", a->ranks,
                "Thread ranks (default 4); under 'pleat launch', mpirun or srun the processes are the ranks")
      ->check(CLI::Range(1, 256));
  c->add_option("--bytes", a->size.bytes, "Bytes per rank of the large calls, a multiple of 4")
      ->capture_default_str();
  c->add_option("--timeout", a->options.timeout_seconds,
                "Seconds until a call counts as a stall (exit code 75)")
      ->capture_default_str();
  c->add_flag("--json", a->json, "Machine-readable");
  add_config_argument(*c, a->config);
  c->get_option("config")->required(false)->description(
      "Exercise every group of the layout of this configuration, over NCCL where its device is a GPU");
  add_example(*c, "pleat doctor --ranks 8\n  pleat doctor configs/demo.toml --ranks 4 --set parallel.ep=2");
  c->callback([a, &chosen] { chosen = [a] { return run_doctor(*a); }; });
}

}  // namespace pleat::apps
