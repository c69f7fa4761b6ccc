// What the data layer needs of a tokenizer.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pleat::data {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string name() const = 0;
  // Ids are 0 .. vocab_size() - 1; a model may pad its table beyond that.
  virtual int64_t vocab_size() const = 0;
  virtual int32_t end_of_document() const = 0;

  // Adds no end-of-document token: that belongs to the writer of a dataset.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  // End-of-document decodes to nothing; an id outside the vocabulary throws.
  virtual std::string decode(std::span<const int32_t> tokens) const = 0;

  // True when encode(a + b) = encode(a) + encode(b) for every cut, so that a document of any size can be
  // encoded piece by piece in constant memory.
  virtual bool can_cut_anywhere() const = 0;
};

}  // namespace pleat::data
