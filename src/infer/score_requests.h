// Request files of `pleat eval`: one JSON object per line, in lm-evaluation-harness's `loglikelihood` form.
//
//   {"context": "...", "continuation": "..."}     or {"arguments": ["...", "..."]}
//   {"text": "..."}                               or {"arguments": ["..."]}        loglikelihood_rolling
//   {"tokens": [1, 2, 3], "num_context_tokens": 1}                                 raw ids
//   {"arguments": {"gen_args_0": {"arg_0": "...", "arg_1": "..."}, ...}}           a file of --log_samples:
//   the
//   {"arguments": [["...", "..."], ...]}                                           requests of one document
//
// All other members are carried into the answer. Text becomes tokens the way the harness does it: white space
// at the end of the context moves to the continuation, the two are encoded together and cut where the
// encoding of the context alone ends; an empty context is the prefix token.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "infer/evaluate.h"
#include "infer/vocabulary.h"

namespace pleat::infer {

struct RequestOptions {
  int64_t max_length = 0;  // inputs of one window; longer contexts lose their front
  std::optional<int32_t> prefix_token;
  bool special_tokens = false;  // encode with the tokenizer's begin and end tokens
};

struct RequestFile {
  std::vector<std::string> extra;      // per line: the members to carry along, as JSON text
  std::vector<char> rolling;           // per line
  std::vector<char> listed;            // per line: it holds a list of requests and gets lists of answers
  std::vector<size_t> first_request;   // per line, and one past the end
  std::vector<size_t> first_window;    // per request, and one past the end
  std::vector<ScoreRequest> requests;  // windows, request by request
  int64_t num_truncated = 0;           // contexts that lost their front
};

// `vocabulary` may be nullptr when every line holds raw ids. Throws naming file and line for anything that is
// not one of the forms above.
RequestFile read_requests(const std::string& path, const Vocabulary* vocabulary,
                          const RequestOptions& options);

// One line per line of requests: what was carried along, then loglikelihood, is_greedy (not for rolling),
// num_tokens; where the line held a list of requests, each of these is a list.
// The file appears only when it is complete.
void write_answers(const std::string& path, const RequestFile& file, const std::vector<Score>& scores);

// The harness's way from a pair of texts to tokens; exposed for tests.
ScoreRequest encode_pair(const std::string& context, const std::string& continuation,
                         const std::function<std::vector<int32_t>(std::string_view)>& encode,
                         std::optional<int32_t> prefix_token);

}  // namespace pleat::infer
