// Which document, or which part of one, is held out: decided before anything is written (prepare.h says how).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "data/prepare.h"
#include "data/text_source.h"

namespace pleat::data {

struct SplitRule {
  bool by_bytes = false;
  int64_t train_bytes = 0;             // by bytes: where the cut is
  int64_t validation_per_million = 0;  // by documents

  // Spreads the validation documents evenly: exactly floor(n * share) of the first n.
  bool is_validation(int64_t document_idx) const;
};

// Reads as many documents as the decision needs. options.split must be given.
SplitRule choose_split(const PrepareOptions& options);

// Where in `text`, whose first byte is number `begin` of all text, the validation side starts; its size when
// that lies further on.
size_t cut_in(std::string_view text, int64_t begin, int64_t target);

InputFormat format_of(const std::string& path, InputFormat asked);

// Calls on_piece(text) and on_end(is_empty) for every document of every input; on_end returns false to stop.
// on_bytes gets the bytes of all inputs read so far.
struct DocumentVisitor {
  std::function<void(int64_t)> on_bytes = {};
  std::function<void(std::string_view)> on_piece = {};
  std::function<bool(bool)> on_end = {};
};
void for_each_document(const PrepareOptions& options, const DocumentVisitor& visitor);

}  // namespace pleat::data
