#include <algorithm>

#include "base/error.h"
#include "base/rng.h"
#include "infer/generate.h"
#include "runtime/logits.h"
#include "runtime/step_inputs.h"

namespace pleat::infer {

namespace step = program::step;

namespace {

// The last tokens of the context into row 0..n-1; the rest of the window is padding nothing can see.
void write_context(interpret::Executor& executor, const std::vector<int32_t>& context, int64_t length) {
  auto* tokens = executor.at(step::tokens, 0).data();
  auto* positions = executor.at(step::positions, 0).data();
  auto* doc_start = executor.at(step::doc_start, 0).data();
  auto* valid = executor.at(step::valid, 0).data();
  auto* token_index = executor.at(step::token_index, 0).data();
  const int64_t n = std::min<int64_t>(static_cast<int64_t>(context.size()), length);
  for (int64_t t = 0; t < length; ++t) {
    const bool real = t < n;
    tokens[t] = real ? context[context.size() - static_cast<size_t>(n) + static_cast<size_t>(t)] : 0;
    positions[t] = real ? static_cast<int32_t>(t) : 0;
    doc_start[t] = real ? 0 : static_cast<int32_t>(t);
    valid[t] = real;
    token_index[t] = t;
  }
}

}  // namespace

std::vector<int32_t> generate(runtime::Programs& programs, const std::vector<int32_t>& prompt,
                              const GenerateOptions& options, const std::function<void(int32_t)>& each) {
  if (prompt.empty()) base::fail("generation needs a prompt of at least one token");
  check_sampling(options);
  interpret::Executor& executor = programs.logits();
  const config::Config& config = programs.config();
  const int64_t length = config.train.seq_len, vocab = config.model.vocab_size;
  for (int32_t t : prompt)
    if (t < 0 || t >= vocab) base::fail("prompt token {} is outside the vocabulary of {}", t, vocab);
  const base::RandomStream random(static_cast<uint64_t>(options.seed), base::RandomUse::Sample, 0, 0);
  std::vector<int32_t> context = prompt, out;
  std::vector<double> row(static_cast<size_t>(vocab));
  for (int64_t i = 0; i < options.max_tokens; ++i) {
    write_context(executor, context, length);
    runtime::write_rng(executor, config.train.seed, 0);
    executor.run();
    const int64_t last = std::min<int64_t>(static_cast<int64_t>(context.size()), length) - 1;
    runtime::read_logits(executor, last, row);
    const int32_t token = choose_token(row, options, random.uniform(static_cast<uint64_t>(i)));
    if (std::find(options.stop_tokens.begin(), options.stop_tokens.end(), token) != options.stop_tokens.end())
      break;
    out.push_back(token);
    context.push_back(token);
    if (each) each(token);
  }
  return out;
}

}  // namespace pleat::infer
