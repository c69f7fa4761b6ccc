// The "pre_tokenizer" of a tokenizer.json: cuts text into the pieces inside which the model may merge.
//
// Each step receives one piece and hands on its parts at once, so that nothing grows with the length of a
// document.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/json_fields.h"
#include "data/tokenizer/regex.h"

namespace pleat::data {

class PieceSink {
 public:
  virtual ~PieceSink() = default;
  // `at_start`: the piece begins where the whole text begins. Never empty.
  virtual void take(std::string_view piece, bool at_start) = 0;
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // `piece` is valid UTF-8 and not empty.
  virtual void run(std::string_view piece, bool at_start, Regex::Workspace& workspace,
                   PieceSink& sink) const = 0;
  // The model sees bytes in GPT-2's alphabet. Pieces are still handed on as the bytes themselves.
  virtual bool ends_in_bytes() const { return false; }
  // Whether at_start changes anything.
  virtual bool asks_for_start() const { return false; }
  // Whether it does so for a part of what run() was given.
  virtual bool asks_for_start_of_parts() const { return false; }
  // Whether what comes out may no longer tell where the text began.
  virtual bool moves_start() const { return false; }
  // How many times text is spelled in GPT-2's alphabet before a later step sees it.
  virtual size_t num_spellings() const { return 0; }
  // Levels of calls a piece goes through.
  virtual size_t num_steps() const { return 1; }
};

// Null for JSON null. Throws, naming the part, for what is not supported.
std::unique_ptr<PreTokenizer> make_pre_tokenizer(const Json& json, const std::string& where);

// The steps one after the other, each over the pieces of the one before.
std::unique_ptr<PreTokenizer> make_pre_tokenizer_sequence(std::vector<std::unique_ptr<PreTokenizer>> steps);

// What `ByteLevel` cuts with.
extern const std::string_view kGpt2Pattern;

}  // namespace pleat::data
