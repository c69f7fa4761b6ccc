// The tokenizer a run's configuration names, and what must hold between it, the model and the data.
#pragma once

#include <memory>
#include <string>

#include "config/config.h"
#include "data/chat/chat_template.h"
#include "data/dataset_info.h"
#include "data/tokenizer/text_tokenizer.h"

namespace pleat::train {

// Opens data.tokenizer, ending documents as data.end_of_document says. Throws, naming both numbers, when it
// has more ids than model.vocab_size (where that is not 0).
std::shared_ptr<data::TextTokenizer> open_run_tokenizer(const config::Config& config);

// A copy whose model.vocab_size, where it was 0, is the size of the tokenizer. To be called before
// config::resolve, which knows the byte tokenizer only. Throws where a key does not fit that vocabulary.
config::Config with_vocabulary(const config::Config& config);

// Throws when a dataset of the run (already prefixes of .bin/.idx) was tokenized with something else than
// data.tokenizer, or with more ids than the model has. Datasets without a description cannot be asked; their
// ids are checked as they are read. Returns a line about settings of the tokenizer's file that do not apply,
// or nothing.
std::string check_tokenizer(const config::Config& config);

// What [chat] says; only where chat.template is not "none".
data::ChatTemplate chat_template_of(const config::ChatConfig& chat);

// What the run's training datasets say they were made with; those of other programs say nothing.
std::vector<data::DatasetInfo> described_datasets(const config::DataConfig& data);

// How the run's conversations are written: by [chat], or as its datasets say, which may have been tokenized
// beforehand (not by strings of their own, which a dataset does not keep). Nothing where there are none.
std::optional<data::ChatTemplate> run_chat_template(const config::Config& config);

}  // namespace pleat::train
