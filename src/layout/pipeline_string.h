// What each chunk of the model holds, as a string:
//
//   E embedding   t decoder layer   m multi-token prediction layer   L loss   | begins the next chunk
//   x*n and (...)*n repeat; commas and spaces only separate.
//
// Chunk i is chunk i / pp of pipeline rank i % pp: a microbatch visits the chunks in the order of the string.
// Chunks may be empty. The embedding is the very first item and the loss the very last, in the first and the
// last chunk, so that tied embeddings lie on the ends of the pipeline. All m stand together in one chunk,
// after every t, and, with more than one pipeline rank, not on the first. Strings come from users: sizes are
// bounded before anything is unrolled.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pleat::layout {

enum class Part : uint8_t { Embedding, Layer, Prediction, Loss };

struct PipelineItem {
  Part part;
  int64_t index = 0;  // of the decoder layer, or the depth of the prediction layer
  bool operator==(const PipelineItem&) const = default;
};

using Chunk = std::vector<PipelineItem>;

// What the string must describe.
struct PipelineShape {
  int64_t pp = 1, vpp = 1, num_layers = 1, num_prediction_layers = 0;
};

struct ChunkPlace {
  int64_t vpp_rank, pp_rank;
  bool operator==(const ChunkPlace&) const = default;
};

class PipelineLayout {
 public:
  // Throws naming what the string has and what is needed.
  static PipelineLayout parse(std::string_view text, const PipelineShape& shape);
  // Every chunk num_layers / (pp x vpp) layers, embedding first, prediction layers and loss last. When that
  // does not divide, the error has the equation, the nearest pp and vpp that do, and a string that would.
  static PipelineLayout even(const PipelineShape& shape);
  // parse, or even when the text is empty.
  static PipelineLayout make(std::string_view text, const PipelineShape& shape);

  const PipelineShape& shape() const { return shape_; }
  int64_t num_chunks() const { return shape_.pp * shape_.vpp; }
  const Chunk& chunk(int64_t vpp_rank, int64_t pp_rank) const;
  const Chunk& chunk(int64_t chunk_idx) const;
  ChunkPlace place_of_layer(int64_t layer) const;
  std::string text() const;  // parses back to the same; runs of an item are repeats

 private:
  PipelineLayout(const PipelineShape& shape, std::vector<Chunk> chunks)
      : shape_(shape), chunks_(std::move(chunks)) {}
  PipelineShape shape_;
  std::vector<Chunk> chunks_;
};

}  // namespace pleat::layout
