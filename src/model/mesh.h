// How many ranks share the work along each axis, and which part of the pipeline one program is for. Plain
// numbers: which rank sits where is the layout's business (src/layout), and one program serves every rank of
// a pipeline stage.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "program/program.h"

namespace pleat::model {

enum class Dispatcher : uint8_t { AllGather, AllToAll };
// How alltoall moves rows. Counted: as many as there are, which the host must know. Padded: as many as there could be.
// Windows: stored into memory of the ranks that get them.
enum class RowExchange : uint8_t { Counted, Padded, Windows };
std::string_view name_of(RowExchange exchange);  // as parallel.exchange names it
enum class ContextKind : uint8_t { AllGather, AllToAll, Ring };
std::string_view name_of(ContextKind kind);         // as parallel.context names it
ContextKind context_kind(const std::string& name);  // its inverse

struct Mesh {
  int64_t tp = 1, cp = 1, dp = 1, pp = 1, vpp = 1;  // attention side
  int64_t ep = 1, etp = 1, edp = 1;                 // expert side
  Dispatcher dispatcher = Dispatcher::AllToAll;
  RowExchange exchange = RowExchange::Counted;
  int64_t exchange_sms =
      0;  // multiprocessors of a GPU whose worth of blocks a store into windows has at most; 0: all
  ContextKind context = ContextKind::AllGather;
  // One rank that drops tokens as this many ranks of a microbatch would: an expert's capacity holds for each
  // piece of the tokens by itself (the input "piece" says which). A reference for layouts.
  int64_t pieces = 1;

  int64_t bucket_bytes = int64_t{128} << 20;  // of gradients in one message; 0: one parameter at a time
  int64_t optimizer_group = 0;                // replicas that share one optimizer state; 0: all

  int64_t world() const { return tp * cp * dp * pp; }
  int64_t size(program::Group group) const;
  // Of a group over which gradients are summed: the ranks that own one copy of the optimizer state.
  int64_t owners(program::Group reduction) const;
};

// One run of consecutive layers a pipeline rank computes at a time.
struct Chunk {
  bool embedding = true, head = true;
  std::vector<int> layers;
};

// What one pipeline rank holds. A tied weight lives where the embedding is and where the head is.
struct Role {
  int pipeline_rank = 0;
  std::vector<Chunk> chunks;

  bool has_embedding() const;
  bool has_head() const;
  bool has_layer(int layer) const;
};
Role whole_model(int64_t num_layers);

}  // namespace pleat::model
