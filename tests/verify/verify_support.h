// What the tests of layouts share: the one small model, layouts, and batches made of documents.
#pragma once

#include <gtest/gtest.h>

#include "verify/compare.h"

namespace pleat::verify {

// Two layers, eight heads, eight experts of which two per token, double; `sets` are "key=value".
config::Config small_model(const std::vector<std::string>& sets = {});

struct Axes {
  int tp = 1, cp = 1, dp = 1, pp = 1, ep = 1, etp = 1;
};
model::Mesh mesh_of(const Axes& axes);
std::string text_of(const model::Mesh& mesh);

// run_layout with the layers spread evenly over the pipeline.
LayoutRun run_on(const config::Config& config, const model::Mesh& mesh, const RunOptions& options = {});

// Empty when the runs agree to `bound`.
std::string difference(const config::Config& config, const LayoutRun& reference, const LayoutRun& run,
                       double bound = 1e-10);

// A packed row: documents back to back, then padding that belongs to nobody. `seed` tells documents apart;
// the token at `changed` (position in the row) is another one than it would be.
struct Packing {
  std::vector<int> lengths;
  std::vector<int> seeds;
};
// One microbatch per packing, each one row of config.train.seq_len tokens.
Batch packed_batch(const config::Config& config, const std::vector<Packing>& packings);
// No token counts for the loss: what is left are the auxiliary losses.
Batch without_loss(Batch batch);

}  // namespace pleat::verify
