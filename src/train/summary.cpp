#include "train/summary.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/best.h"
#include "config/run_files.h"
#include "cost/nccl_memory.h"
#include "data/byte_tokenizer.h"
#include "device/cpu/blas.h"
#include "device/cuda/cuda.h"
#include "infer/generate.h"
#include "run/origin.h"
#include "train/bigram.h"
#include "train/memory.h"
#include "train/run_tokenizer.h"

namespace pleat::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Of the memory that steps run in: the GPU's where they run there.
struct ArenaUse {
  int64_t planned = 0, measured = 0, outside = 0;
};
ArenaUse arena_use(runtime::Programs& programs) {
  ArenaUse use;
  int64_t all = 0;
  if (interpret::CudaMachine* gpu = programs.machine()) {
    const device::cuda::Facts now = device::cuda::facts();
    use = {gpu->arena_bytes(), gpu->end_of_changes(), 0};
    all = now.memory_bytes - now.free_bytes;
  } else {
    const device::Arena& arena = programs.arena();
    use = {arena.size(), arena.end_of_changes(), 0};
    all = process_memory().anonymous_bytes;
  }
  use.outside = std::max<int64_t>(0, all - use.planned);
  return use;
}

// What NCCL has taken on this rank, beside what `pleat plan` says of it; nothing where ranks exchange otherwise.
void add_nccl_memory(json& summary, const runtime::Crew& crew, const program::Program& program) {
  const std::vector<runtime::Crew::TakenMemory> taken = crew.device_memory_of_groups();
  if (taken.empty()) return;
  int64_t all = 0;
  json by_group = json::object();
  for (const runtime::Crew::TakenMemory& t : taken) {
    all += t.bytes;
    by_group[t.group] = by_group.value(t.group, int64_t{0}) + t.bytes;
  }
  summary["nccl_planned_bytes"] = cost::nccl_memory(crew.setup().mesh, program).bytes;
  summary["nccl_measured_bytes"] = all;
  summary["nccl_measured_by_group"] = by_group;
}

json sources(const Trainer& trainer) {
  json out = json::array();
  for (const Trainer::SourceUse& use : trainer.source_uses())
    out.push_back(
        {{"path", use.prefix}, {"weight", use.weight}, {"tokens", use.tokens}, {"epochs", use.epochs}});
  return out;
}

std::string sample(runtime::Programs& programs) {
  const config::Config& config = programs.config();
  const std::shared_ptr<data::TextTokenizer> tokenizer = open_run_tokenizer(config);
  infer::GenerateOptions o;
  o.max_tokens = 240;
  o.seed = config.train.seed;
  if (tokenizer->has_end_of_document()) o.stop_tokens = {tokenizer->end_of_document()};
  const std::string prompt = "The ";
  return prompt + tokenizer->decode(infer::generate(programs, tokenizer->encode(prompt), o),
                                    {.skip_special_tokens = true, .skip_unknown_ids = true});
}

}  // namespace

nlohmann::json run_summary(Trainer& trainer, const RunHistory& history,
                           const std::optional<EvalOutcome>& final_eval, const std::string& state_sha256,
                           base::ExitCode code, base::Vfs& vfs) {
  const config::Config& config = trainer.config();
  const runtime::Crew& crew = trainer.crew();
  const runtime::Planned& planned = trainer.programs().train_plan();
  const ArenaUse memory = arena_use(trainer.programs());
  json owners = json::object();
  for (size_t i = 0; i < planned.plan.at_peak.size(); ++i)
    owners[std::string(program::name_of(static_cast<program::Owner>(i)))] = planned.plan.at_peak[i];
  json summary = {{"run", fs::absolute(config.log.run_dir).lexically_normal().filename().string()},
                  {"ranks", crew.setup().world()},
                  {"config", config::to_toml(config::in_folder(config, config.log.run_dir))},
                  {"steps", trainer.run_state().step},
                  {"final_loss", history.last_loss()},
                  {"tokens", history.tokens_before() + trainer.tokens_seen()},
                  {"tokens_per_s", history.tokens_per_s()},
                  {"model_tflops", history.model_tflops()},
                  {"hardware_tflops", history.hardware_tflops()},
                  {"gemm_peak_tflops", trainer.gemm_rate() / 1e12},
                  {"planned_peak_bytes", memory.planned},
                  {"measured_peak_bytes", memory.measured},
                  {"live_peak_bytes", planned.plan.live_peak_bytes},
                  {"outside_bytes", memory.outside},
                  {"large_allocations_in_steps",
                   trainer.allocations().available ? json(trainer.allocations().large) : json(nullptr)},
                  {"large_allocations_in_first_steps",
                   trainer.allocations().available ? json(trainer.first_allocations().large) : json(nullptr)},
                  {"driver_allocations_in_steps",
                   trainer.allocations().available ? json(trainer.allocations().driver) : json(nullptr)},
                  {"memory_by_owner", owners},
                  {"blas", device::blas_description()},
                  {"state_sha256", state_sha256},
                  {"refused_steps", trainer.run_state().refused_total},
                  {"wall_seconds", history.wall_seconds()},
                  {"exit_code", static_cast<int>(code)}};
  add_nccl_memory(summary, crew, planned.program);
  if (history.best_eval() > 0) summary["best_eval_loss"] = history.best_eval();
  // Not every step that is evaluated is saved: where there is a best checkpoint, the loss is that one's.
  if (const std::optional<checkpoint::Best> best = checkpoint::read_best(vfs, config.checkpoint.dir)) {
    summary["best_checkpoint_step"] = best->step;
    summary["best_eval_loss"] = best->loss;
  }
  if (final_eval) {
    summary["validation_loss"] = final_eval->loss;
    summary["validation_tokens"] = final_eval->tokens;
  }
  if (const std::optional<run::Origin> origin = run::read_origin(config.log.run_dir))
    summary["origin"] = {
        {"path", origin->path}, {"step", origin->step}, {"state_sha256", origin->state_sha256}};
  if (final_eval && final_eval->bits_per_byte > 0) {
    summary["validation_bits_per_byte"] = final_eval->bits_per_byte;
    if (trainer.train_data().num_sources() == 1)
      if (const double bits = bigram_bits_per_byte(trainer.train_data().dataset(0), *trainer.valid_data());
          bits > 0)
        summary["bigram_bits_per_byte"] = bits;
  }
  if (!config.data.sources.empty()) summary["sources"] = sources(trainer);
  // "byte" is also what stands there when the data came from elsewhere.
  const bool speaks =
      config.data.tokenizer != "byte" || config.model.vocab_size >= data::ByteTokenizer::kVocabSize;
  if (code == base::ExitCode::Done && speaks && crew.alone()) {
    // Weights from which nothing can be said are a fact about the run, not its end.
    try {
      summary["sample"] = sample(trainer.programs());
    } catch (const base::Error& error) {
      summary["no_sample"] = error.what();
    }
  }
  return summary;
}

}  // namespace pleat::train
