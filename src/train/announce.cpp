#include "train/announce.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "cost/nccl_memory.h"
#include "device/cpu/blas.h"
#include "device/near_cpus.h"
#include "kernels/cuda/choices.h"
#include "report/format.h"
#include "report/table.h"

namespace pleat::train {
namespace {

using nlohmann::json;

// What is trained, by class.
void announce_classes(const config::Config& config, Trainer& trainer) {
  std::map<std::string, std::pair<int64_t, int64_t>> classes;  // tensors, numbers
  std::map<std::string, bool> frozen;
  int64_t trained = 0, total = 0;
  for (const model::Parameter& p : trainer.programs().table()) {
    if (!p.tied_to.empty()) continue;
    const std::string name = model::name_of(p.parameter_class);
    const int64_t n = model::num_elements(p);
    classes[name].first += 1;
    classes[name].second += n;
    frozen[name] = p.frozen;
    total += n;
    trained += frozen[name] ? 0 : n;
  }
  report::Table table({{"class"},
                       {"tensors", report::Align::Right},
                       {"parameters", report::Align::Right},
                       {"trainable", report::Align::Right},
                       {"lr", report::Align::Right}});
  int64_t tensors = 0;
  for (const auto& [name, count] : classes) {
    const auto group = config.optimizer.groups.find(name);
    const double mult = group == config.optimizer.groups.end() ? 1.0 : group->second.lr_mult;
    table.add_row({name, std::to_string(count.first), std::to_string(count.second),
                   frozen[name] ? "frozen" : std::to_string(count.second),
                   frozen[name] ? "-" : fmt::format("x {:g}", mult)});
    tensors += count.first;
  }
  table.add_rule();
  table.add_row({"all", std::to_string(tensors), std::to_string(total), std::to_string(trained), ""});
  fmt::print(stderr, "{}", table.text());
}

// On a GPU: ranks that meet on the host, or a host that must know counts.
bool runs_stage_by_stage(Trainer& trainer) {
  if (trainer.config().device.kind != "cuda") return false;
  const program::Program& step = trainer.programs().train_plan().program;
  return !trainer.config().device.graph ||
         std::any_of(step.stages.begin(), step.stages.end(),
                     [](const program::Stage& s) { return class_of(s.op) == program::OpClass::Host; });
}

// How rows reach experts on other ranks, where there are several ways.
void announce_exchange(const config::Config& config, const model::Mesh& mesh) {
  if (mesh.size(program::Group::Dispatch) == 1 || mesh.dispatcher != model::Dispatcher::AllToAll) return;
  const bool fell_back = config.parallel.exchange == "auto" && config.device.kind == "cuda" &&
                         mesh.exchange == model::RowExchange::Counted;
  fmt::print(stderr, "rows reach experts on other ranks: {}{}{}\n", name_of(mesh.exchange),
             fell_back ? ", since not all of them reach each other's memory (parallel.exchange)" : "",
             fell_back && mesh.exchange_sms > 0 ? "; comm.exchange_sms has no effect" : "");
}

// Rows of asked / used / why. Short: only what is used otherwise than it was asked.
void announce_keys(const config::Config& asked, bool verbose) {
  report::Table table({{"key"}, {"asked"}, {"used"}, {"why"}});
  int64_t rows = 0;
  for (const config::ResolvedRow& row : config::resolved(asked)) {
    if (row.why.starts_with("not used") || row.why == "default") continue;
    if (!verbose && (row.asked == "default" || row.asked == row.used)) continue;
    table.add_row({row.key, row.asked, row.used, row.why});
    ++rows;
  }
  if (rows > 0) fmt::print(stderr, "{}", table.text());
}

// A GPU's memory and the host's. What the driver of a GPU takes for itself stands apart.
std::string allocations_text(const Trainer& trainer) {
  const base::AllocationCount &all = trainer.allocations(), &first = trainer.first_allocations();
  if (!all.available) return "allocations inside steps unknown";
  std::string out = fmt::format("{} allocations >= 4 KiB inside steps", all.large - first.large);
  if (first.large > 0)
    out += fmt::format(
        ", and {} inside the first {}, where {}", first.large, Trainer::kFirstSteps,
        trainer.config().device.kind == "cuda" ? "the step's graph is made" : "libraries set themselves up");
  if (all.driver > 0)
    out += fmt::format("; {} on the host are the driver's own ({} inside the first {}): {}", all.driver,
                       first.driver, Trainer::kFirstSteps, all.drivers);
  return out;
}

// How the model does on all of the validation data; the lines of the steps say it of a part.
void say_validation(const json& s) {
  if (!s.contains("validation_loss")) return;
  fmt::print(stderr, "validation, all of it: loss {:.4f} over {}", s.at("validation_loss").get<double>(),
             base::counted(s.at("validation_tokens").get<int64_t>(), "token"));
  if (s.contains("validation_bits_per_byte")) {
    const double ours = s.at("validation_bits_per_byte").get<double>();
    fmt::print(stderr, ", {:.4f} bits per byte", ours);
    if (s.contains("bigram_bits_per_byte"))
      fmt::print(stderr, "; {}", compared_with_bigram(ours, s.at("bigram_bits_per_byte").get<double>()));
  }
  fmt::print(stderr, "\n");
}

// What part of the validation data the lines of the steps speak of.
void announce_evaluation(const Trainer& trainer) {
  if (!trainer.has_validation()) return;
  const config::TrainConfig& train = trainer.config().train;
  const int64_t all = trainer.num_valid_batches();
  const std::string when = train.eval_every > 0 ? fmt::format("every {} and after the last",
                                                              base::counted(train.eval_every, "step"))
                                                : "after the last step";
  if (all <= train.eval_batches)
    fmt::print(stderr, "eval: all of the validation data, {}\n", when);
  else
    fmt::print(stderr,
               "eval: the first {} of {} microbatches of the validation data, {}; at the end all of it\n",
               train.eval_batches, all, when);
}

// What the groups are estimated to take, and what opening them took; the first calls take the rest.
void announce_nccl(Trainer& trainer) {
  const cost::NcclMemory planned =
      cost::nccl_memory(trainer.crew().setup().mesh, trainer.programs().train_plan().program);
  int64_t opened = 0;
  for (const runtime::Crew::TakenMemory& t : trainer.crew().device_memory_of_groups()) opened += t.bytes;
  fmt::print(stderr, "gpu: NCCL takes an estimated {} for {}; {} when they were opened\n",
             report::format_bytes(double(planned.bytes)), base::counted(planned.num_groups, "group"),
             report::format_bytes(double(opened)));
}

}  // namespace

std::string compared_with_bigram(double bits, double bigram) {
  const double percent = 100 * (bits / bigram - 1);
  const std::string text = fmt::format("{:.1f} % {}", std::abs(percent), percent > 0 ? "higher" : "lower");
  return fmt::format("byte bigram on the same split: {:.4f} (the model is {})", bigram,
                     text.starts_with("0.0 %") ? "as good" : text);
}

void announce(const config::Config& asked, Trainer& trainer, const std::string& carrier, bool verbose) {
  const config::Config& config = trainer.config();
  const model::ParameterCount count = model::count_parameters(config, trainer.programs().table());
  const interpret::Plan& plan = trainer.programs().train_plan().plan;
  fmt::print(stderr, "{} parameters, {} active per token; arena {}; GEMM rate {:.1f} GFLOP/s on {} ({})\n",
             report::format_count(double(count.total)), report::format_count(double(count.active)),
             report::format_bytes(double(plan.arena_bytes)), trainer.gemm_rate() / 1e9,
             base::counted(trainer.crew().num_threads() * trainer.crew().setup().world(), "thread"),
             device::blas_description());
  if (!trainer.crew().alone()) {
    const model::Mesh& m = trainer.crew().setup().mesh;
    fmt::print(
        stderr,
        "{} ranks ({}), {} each: attention tp {} x cp {} x dp {} x pp {}, experts etp {} x ep {} "
        "x edp {} x pp {}; the arena is that of rank 0, the GEMM rate that of all{}\n",
        m.world(), carrier, base::counted(trainer.crew().num_threads(), "thread"), m.tp, m.cp, m.dp, m.pp,
        m.etp, m.ep, m.edp, m.pp,
        runs_stage_by_stage(trainer) ? "; steps run stage by stage, not as a graph (device.graph)" : "");
  }
  announce_exchange(config, trainer.programs().setup().mesh);
  announce_keys(asked, verbose);
  announce_evaluation(trainer);
  for (size_t i = 0; i < trainer.train_data().num_sources(); ++i)
    if (const data::WholeDocuments* whole = trainer.train_data().sampler(i).whole_documents())
      fmt::print(stderr, "{}: {}\n", trainer.train_data().dataset(i).prefix(), whole->text());
  if (verbose || !config.optimizer.freeze.empty() || !config.optimizer.groups.empty())
    announce_classes(config, trainer);
  if (verbose) {
    for (const std::string& line : kernels::cuda_choices()) fmt::print(stderr, "gpu: {}\n", line);
    if (const std::string bound = device::near_cpus_remark(); !bound.empty())
      fmt::print(stderr, "gpu: {}\n", bound);
    if (trainer.crew().meeting(runtime::buffers_of(runtime::device_of(config.device.kind))) ==
        program::Meeting::OnDevice)
      announce_nccl(trainer);
  }
  for (const std::string& remark : config.notes) fmt::print(stderr, "note: {}\n", remark);
  if (!verbose) fmt::print(stderr, "every setting: {}/config.toml (or --verbose)\n", config.log.run_dir);
}

void say_goodbye(const json& s, const Trainer& trainer) {
  const auto bytes = [&](const char* key) { return report::format_bytes(s.at(key).get<double>()); };
  fmt::print(stderr, "memory: planned {} ({} bytes), measured {} ({} bytes); outside the arena {}; {}\n",
             bytes("planned_peak_bytes"), s.at("planned_peak_bytes").get<int64_t>(),
             bytes("measured_peak_bytes"), s.at("measured_peak_bytes").get<int64_t>(), bytes("outside_bytes"),
             allocations_text(trainer));
  if (s.contains("nccl_measured_bytes"))
    fmt::print(stderr, "memory of NCCL on this rank, outside the arena: estimated {}, measured {}\n",
               bytes("nccl_planned_bytes"), bytes("nccl_measured_bytes"));
  fmt::print(stderr,
             "speed: {}, {:.4f} model TFLOP/s, {:.4f} hardware TFLOP/s, {:.1f} % of the measured GEMM rate\n",
             report::format_token_rate(s.at("tokens_per_s").get<double>()),
             s.at("model_tflops").get<double>(), s.at("hardware_tflops").get<double>(),
             100 * s.at("hardware_tflops").get<double>() / s.at("gemm_peak_tflops").get<double>());
  say_validation(s);
  if (!trainer.config().data.sources.empty()) {
    report::Table table({{"source"},
                         {"share asked", report::Align::Right},
                         {"tokens", report::Align::Right},
                         {"epochs", report::Align::Right}});
    for (const Trainer::SourceUse& use : trainer.source_uses())
      table.add_row({use.prefix, fmt::format("{:.2f} %", 100 * use.weight),
                     report::format_count(double(use.tokens)), fmt::format("{:.3f}", use.epochs)});
    fmt::print(stderr, "{}", table.text());
  }
  if (s.contains("no_sample"))
    fmt::print(stderr, "no sample of text: {}\n", s.at("no_sample").get<std::string>());
  if (s.contains("sample")) fmt::print(stderr, "sample:\n{}\n", s.at("sample").get<std::string>());
  fmt::print(stderr, "state sha256 {}\n", s.at("state_sha256").get<std::string>());
}

}  // namespace pleat::train
