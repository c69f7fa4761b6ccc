// A run keeps a copy of the tokenizer it uses, so that its folder alone is enough to go on, generate and
// export elsewhere.
//
// The copy lies in RUN/tokenizer, or RUN/tokenizer-2 and so on where that one is in use. It is made when the run
// is accepted; until then the files the user named are read. A run that has been trained keeps its copy, also
// when those files are gone or changed.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "config/config.h"
#include "train/names_in_use.h"

namespace pleat::train {

class OwnTokenizer {
 public:
  // `keep`: the run has been trained. `in_use`: copies that stay as they are. Throws when there are no files to
  // copy. Writes nothing.
  OwnTokenizer(const config::Config& config, bool keep, const Names& in_use);

  const std::string& read_from() const { return read_from_; }  // data.tokenizer until the run is accepted
  const std::string& name() const { return name_; }            // data.tokenizer from then on
  const std::string& note() const { return note_; }            // for people; may be empty
  // Writes the copy where there is none yet: a whole one or, when cut short, none.
  void write() const;

 private:
  using Files = std::vector<std::pair<std::string, std::string>>;  // names, contents
  static Files files_of(const std::string& source);
  static Files files_in(const std::string& copy);

  std::string read_from_, name_, note_;
  std::string copy_;  // to be written; empty: nothing is
  Files files_;
};

// A copy of `config` with another data.tokenizer.
config::Config with_tokenizer(const config::Config& config, const std::string& tokenizer);

}  // namespace pleat::train
