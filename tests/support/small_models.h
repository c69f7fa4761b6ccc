// Models small enough for a test, as the text of a configuration. Every key names its section, so a test adds lines
// behind for what it needs beyond; what it wants otherwise, it sets as --set does.
#pragma once

#include <string>

namespace pleat::testing {

// For programs that are built, counted and planned: eight experts and a shared one. Layers and
// microbatches are the test's.
inline const std::string kBuiltModel = R"(
model.vocab_size = 61
model.hidden_size = 32
model.num_heads = 4
model.num_kv_heads = 2
moe.num_experts = 8
moe.top_k = 2
moe.ffn_hidden_size = 24
moe.shared_ffn_hidden_size = 40
train.micro_batch = 2
train.seq_len = 24
)";

// For runs on text, whose words are its bytes. The number of experts is the test's.
inline const std::string kRunModel = R"(
model.hidden_size = 32
model.num_layers = 2
model.num_heads = 4
model.num_kv_heads = 2
moe.ffn_hidden_size = 16
train.micro_batch = 2
train.seq_len = 32
)";

// For layouts of several ranks: a dense layer and experts, four microbatches. Layers, words and the width of the dense
// layer are the test's.
inline const std::string kLayoutModel = R"(
model.hidden_size = 32
model.num_heads = 4
model.leading_dense_layers = 1
moe.num_experts = 8
moe.top_k = 2
moe.ffn_hidden_size = 16
moe.shared_ffn_hidden_size = 16
train.num_microbatches = 4
train.micro_batch = 2
train.seq_len = 16
optimizer.schedule = "constant"
)";

}  // namespace pleat::testing
