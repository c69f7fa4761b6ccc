// One training run as a sequence of steps, with all state that makes its future in one place.
//
// A step is a transaction: inputs are written, the program runs, and only its update stages touch weights,
// each predicated on a finite loss and gradient. A refused step leaves the state as it was, is run once more
// with a look at every value to name the culprit, and is counted; the data moves on. A fault that does not
// repeat leaves no trace: the second run is then the step. With optimizer.update_at = "backward" a gradient that
// is not finite is met when other weights have moved: such a step throws, and what is saved is what was. A step
// that needs more rows than moe.token_budget has room for stops the run, loses rows, or is run again by a program
// with room for all, as moe.overflow says.
//
// With several ranks each has a trainer, and all make the same calls. runtime::Microbatch i dp + d of a step is the
// i-th of data replica d; every rank moves its data position over all of them, so the position belongs to no
// layout. Outcomes are the same on all ranks.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/alloc_watch.h"
#include "checkpoint/save.h"
#include "data/mixture.h"
#include "report/metrics.h"
#include "runtime/programs.h"
#include "train/feed.h"
#include "train/sharded_state.h"

namespace pleat::train {

// Everything a resumed run needs besides the tensors. Learning rate and random numbers follow from the step.
struct RunState {
  int64_t step = 0;  // steps done, refused ones included
  data::MixturePosition data;
  int64_t refused_total = 0, refused_in_row = 0;
  double update_norm = 0;  // of the gradients of the last update, for optimizer.clip_by = "previous"
};

struct StepOutcome {
  report::StepRecord record;
  bool committed = true;
  std::string
      culprit;  // of a step that was refused at first: stage, value, element, or that it did not repeat
  std::string
      overflow;  // of a step that was run again because it was past its token budget: layer, rank, rows
};

struct EvalOutcome {
  double loss = 0;           // nats per token
  double bits_per_byte = 0;  // 0 where labels are not bytes
  int64_t tokens = 0;
  bool all = false;      // all of the validation data, not its first microbatches alone
  bool stopped = false;  // asked to stop before the end: there is no result
};

// The text "data" of a checkpoint that was imported and has not seen data yet: any data may follow, from its
// start.
inline constexpr const char* kImportedData = "imported";
bool is_unseen(const checkpoint::Loaded& loaded);

struct TrainerHooks {
  // After a step's inputs are written, before it runs: tests plant faults here.
  std::function<void(int64_t step, interpret::Executor&)> before_run;
};

class Trainer {
 public:
  // Opens the data, builds and plans the programs, initialises the weights. `config` must be resolved and its
  // data prepared (prefixes of .bin/.idx). The crew (none: one rank) outlives this.
  Trainer(const config::Config& config, const runtime::ProgramChoice& choice = {}, TrainerHooks hooks = {},
          runtime::Crew* crew = nullptr);

  StepOutcome step(const interpret::RunOptions& options = {});
  // The first `num_batches` microbatches of the validation data in their order; 0: all of it, whole
  // microbatches only. `stop` is asked before each, by all ranks alike.
  EvalOutcome evaluate(int64_t num_batches, const std::function<bool()>& stop = {});
  bool has_validation() const { return valid_data_.has_value(); }
  // Whole microbatches of the validation data; throws where there is none.
  int64_t num_valid_batches() const;
  // How much of each source was trained on, in the order of data.sources; one of data.train alone.
  struct SourceUse {
    std::string prefix;
    double weight = 1;   // share asked for
    int64_t tokens = 0;  // trained on
    double epochs = 0;
  };
  std::vector<SourceUse> source_uses() const;

  // The whole state, of one rank: what is saved, and what the run's SHA-256 is taken over.
  checkpoint::StateView state() const;
  // The same with several ranks: the leader's `use` gets the view, whose tensors come from their owners while
  // they are read; the others answer (train/sharded_state.h).
  void with_state(const std::function<void(const checkpoint::StateView&)>& use);
  std::string state_sha256();
  // All ranks call it; each writes its share (checkpoint/save.h).
  checkpoint::SaveResult save(base::Vfs& vfs, const std::string& directory,
                              const checkpoint::SaveOptions& options);
  static constexpr const char* kDataChange = "data: ";  // begins the line about other data
  // Replaces the state. Throws when the checkpoint belongs to another model (Key::resume) or, unless that is
  // allowed, to other data, which then is read from its start; returns every config value that differs and is
  // allowed to. With several ranks they must have verified it together.
  enum class OtherData : bool { Refused, Allowed };
  std::vector<std::string> restore(const checkpoint::Loaded& loaded,
                                   OtherData other_data = OtherData::Refused);

  const RunState& run_state() const { return run_; }
  runtime::Programs& programs() { return programs_; }
  const config::Config& config() const { return config_; }
  const runtime::Crew& crew() const { return crew_; }
  int64_t tokens_per_step() const;
  double model_flops_per_step() const { return model_flops_; }
  double hardware_flops_per_step() const { return hardware_flops_; }  // of all ranks
  double gemm_rate() const { return gemm_rate_; }
  const base::Laps& laps() const { return laps_; }  // where the time until the first step could begin went
  int64_t tokens_seen() const;                      // trained on so far, by the position in the data
  // Large allocations seen inside steps so far; `available` is false in sanitizer builds. The first steps
  // alone: in them a GPU's graph is made and its libraries set themselves up.
  static constexpr int64_t kFirstSteps = 2;
  const base::AllocationCount& allocations() const { return allocations_; }
  const base::AllocationCount& first_allocations() const { return first_allocations_; }
  const data::Mixture& train_data() const { return train_data_; }
  const data::IndexedDataset* valid_data() const { return valid_data_ ? &valid_data_->dataset(0) : nullptr; }

 private:
  void write_inputs(interpret::Executor& executor, data::MixturePosition& position,
                    runtime::BatchCounts& counts);
  // The next microbatch of this rank's data replica into microbatch_; moves the position past those of all replicas.
  void read_own(data::MixturePosition& position, runtime::BatchCounts& counts);
  // Behind write_inputs; microbatches that are repeated stages are read as their passes come.
  void run(interpret::Executor& executor, interpret::RunOptions options);
  void read_results(interpret::Executor& executor, report::StepRecord& record);
  // What the step that ran was refused for if it was past its token budget; else empty. Same on all ranks.
  std::string past_budget();
  // Throws where a refused step may have moved weights.
  void require_untouched(const report::StepRecord& record) const;
  // After a refused step: runs it once more and says what was wrong.
  void look_again(interpret::Executor& executor, StepOutcome& out);
  checkpoint::StateView scalars() const;
  // What the data is, one line per source; compared on resume. Reads all of it when it is first asked for.
  const std::string& data_identity() const;
  // All ranks call it, before the leader asks for that.
  void settle_identity();
  data::MixturePosition saved_position(const checkpoint::Loaded& loaded) const;

  base::Laps laps_;
  config::Config config_;
  TrainerHooks hooks_;
  std::unique_ptr<runtime::Crew> own_crew_;
  runtime::Crew& crew_;
  data::Mixture train_data_;
  std::optional<data::Mixture> valid_data_;
  runtime::Programs programs_;
  runtime::InputRows rows_;
  runtime::Microbatch microbatch_;
  data::MixturePosition repeated_from_;  // the next pass's
  std::optional<ShardedState> sharded_;
  RunState run_;
  double model_flops_ = 0, hardware_flops_ = 0, gemm_rate_ = 0;
  base::AllocationCount first_allocations_, allocations_;
  int64_t steps_here_ = 0;        // of this object
  mutable std::string identity_;  // of the data; made when it is first asked for
};

}  // namespace pleat::train
