// A run with everything settled that could refuse it: its tokenizer and data, its trainer at the state it goes on from,
// its folder its own.
#pragma once

#include <string>

#include "config/config.h"
#include "train/loop.h"
#include "train/own_tokenizer.h"
#include "train/start.h"
#include "train/trainer.h"

namespace pleat::train {

class OpenRun {
 public:
  // All ranks call it. `carrier` says what the ranks are, for people.
  OpenRun(const config::Config& asked, const LoopOptions& options, runtime::Crew& crew,
          const std::string& carrier, Start start);

  const config::Config& asked() const { return named_; }  // with the own tokenizer
  const config::Config& config() const { return config_; }
  Trainer& trainer() { return trainer_; }
  const Start& start() const { return start_; }
  base::Vfs& vfs() { return *start_.vfs; }
  const base::Laps& laps() const { return laps_; }
  bool quiet() const { return quiet_; }  // nothing on the console, as asked or because another rank speaks
  std::string path(const std::string& name) const { return config_.log.run_dir + "/" + name; }

 private:
  bool keeps_its_data() const;
  config::Config prepared();
  void sign();
  void accept();
  void require_shared();
  void begin_from_weights();
  TrainerHooks hooks() const;
  runtime::ProgramChoice choice() const;
  void resume();
  void tidy();

  base::Laps laps_;
  const LoopOptions& options_;
  runtime::Crew& crew_;
  const bool quiet_;
  Start start_;
  const Names in_use_;
  const OwnTokenizer tokenizer_;
  config::Config named_, asked_, config_;  // as asked, with the own tokenizer; with prepared data; resolved
  const std::string choices_line_;
  Trainer trainer_;
};

}  // namespace pleat::train
