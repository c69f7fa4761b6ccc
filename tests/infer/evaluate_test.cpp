// Log-likelihoods against a log-softmax of whole-sequence logits, and the files they come from and go to.
#include "infer/evaluate.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "infer/inference_support.h"
#include "infer/score_requests.h"
#include "support/refusal.h"

namespace pleat::infer::testing {
namespace {

struct Expected {
  double log_prob;
  int32_t best;
};

// Of tokens 1 .. n-1, each given those before it.
std::vector<Expected> by_hand(const config::Config& config, const std::vector<int32_t>& tokens) {
  InferenceChoice choice;
  choice.num_sequences = 1;
  choice.max_length = static_cast<int64_t>(tokens.size());
  choice.whole_sequences = true;
  Inference model(config, choice);
  fill_weights(model);
  const Logits logits = logits_of(*make_next_token(model), {{tokens}});
  std::vector<Expected> out;
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    const std::vector<double>& row = logits.at({0, int64_t(i)});
    double sum = 0;
    for (double x : row) sum += std::exp(x);
    out.push_back({row[size_t(tokens[i + 1])] - std::log(sum),
                   int32_t(std::max_element(row.begin(), row.end()) - row.begin())});
  }
  return out;
}

class Scores : public ::testing::TestWithParam<std::tuple<ModelCase, std::string>> {};

TEST_P(Scores, EqualTheLogSoftmax) {
  const config::Config config = case_config(std::get<0>(GetParam()), std::get<1>(GetParam()));
  InferenceChoice choice;
  choice.score_tokens = 16;
  Inference model(config, choice);
  fill_weights(model);
  // Several that share a batch, one that fills it, one without anything to score.
  std::vector<ScoreRequest> requests = {{random_tokens(9, 37, 1), 4}, {random_tokens(17, 37, 2), 1},
                                        {random_tokens(3, 37, 3), 2}, {random_tokens(5, 37, 4), 5},
                                        {random_tokens(6, 37, 5), 1}, {random_tokens(1, 37, 6), 1}};
  int64_t last = 0;
  const std::vector<Score> scores = score(model, requests, [&](int64_t done) { last = done; });
  EXPECT_EQ(last, 6);
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto& r = requests[i];
    const std::vector<Expected> expected = by_hand(config, r.tokens);
    double sum = 0;
    bool greedy = true;
    for (size_t t = size_t(r.first_scored); t < r.tokens.size(); ++t)
      sum += expected[t - 1].log_prob, greedy &= expected[t - 1].best == r.tokens[t];
    EXPECT_NEAR(scores[i].log_likelihood, sum, std::get<1>(GetParam()) == "float64" ? 1e-10 : 3e-5) << i;
    EXPECT_EQ(scores[i].is_greedy, greedy) << i;
    EXPECT_EQ(scores[i].num_tokens, int64_t(r.tokens.size()) - r.first_scored) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Scores,
                         ::testing::Combine(::testing::ValuesIn(model_cases()),
                                            ::testing::Values("float32", "float64")),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" + std::get<1>(info.param);
                         });

class ScoreOne : public ::testing::Test {
 protected:
  ScoreOne() : config_(case_config(model_cases()[0], "float64")), model_(config_, choice()) {
    fill_weights(model_);
  }
  static InferenceChoice choice() {
    InferenceChoice c;
    c.score_tokens = 12;
    return c;
  }
  config::Config config_;
  Inference model_;
};

TEST_F(ScoreOne, GreedyBothWays) {
  // The model's own choice, token by token, and the same with the last or the first token changed.
  std::vector<int32_t> tokens = {3};
  for (int i = 0; i < 5; ++i) {
    tokens.push_back(0);
    tokens.back() = by_hand(config_, tokens).back().best;
  }
  const auto greedy = [&](const std::vector<int32_t>& t, int64_t first) {
    const std::vector<ScoreRequest> one = {{t, first}};
    return score(model_, one)[0].is_greedy;
  };
  EXPECT_TRUE(greedy(tokens, 1));
  std::vector<int32_t> other = tokens;
  other.back() = (other.back() + 1) % 37;
  EXPECT_FALSE(greedy(other, 1));
  EXPECT_FALSE(greedy(other, 5));
  std::vector<int32_t> early = {3, (tokens[1] + 1) % 37};
  early.push_back(by_hand(config_, {early[0], early[1], 0}).back().best);
  EXPECT_FALSE(greedy(early, 1));
  EXPECT_TRUE(greedy(early, 2)) << "only what is scored counts";
}

TEST_F(ScoreOne, BadRequestsAreRefused) {
  const auto refused = [&](ScoreRequest r) {
    const std::vector<ScoreRequest> one = {std::move(r)};
    EXPECT_THROW(score(model_, one), base::Error);
  };
  refused({{}, 1});
  refused({{1, 2}, 0});
  refused({{1, 2}, 3});
  refused({{1, 37}, 1});
  refused({std::vector<int32_t>(14, 1), 1});
}

TEST(Windows, EveryTokenOnceWithTheContextPromised) {
  for (int64_t n : {0, 1, 2, 5, 12, 13, 40})
    for (int64_t length : {1, 4, 12})
      for (int64_t stride : {1, 3, 4, 12})
        for (bool full_last : {false, true}) {
          if (stride > length) continue;
          std::vector<int32_t> document;
          for (int64_t i = 0; i < n; ++i) document.push_back(int32_t(i));
          std::vector<int> scored(size_t(n), 0);
          for_each_window(document, length, stride, full_last, [&](ScoreRequest&& r) {
            EXPECT_LE(r.num_rows(), length);
            EXPECT_GE(r.first_scored, 1);
            EXPECT_GE(r.num_scored(), 1);
            for (size_t i = 0; i < r.tokens.size(); ++i)
              EXPECT_EQ(r.tokens[i], r.tokens[0] + int32_t(i)) << "a window is a piece of the document";
            for (int64_t i = r.first_scored; i < int64_t(r.tokens.size()); ++i) {
              ++scored[size_t(r.tokens[size_t(i)])];
              const int64_t before = i, there = r.tokens[size_t(i)];
              EXPECT_GE(before, std::min(there, length - stride + 1)) << n << " " << length << " " << stride;
            }
            if (full_last && r.tokens.back() == n - 1) {
              EXPECT_EQ(r.num_rows(), std::min(length, n - 1));
            }
          });
          for (int64_t i = 0; i < n; ++i)
            EXPECT_EQ(scored[size_t(i)], i > 0) << n << " " << length << " " << stride;
        }
  EXPECT_THROW(for_each_window({}, 4, 5, false, {}), base::Error);
  EXPECT_THROW(for_each_window({}, 4, 0, false, {}), base::Error);
}

TEST_F(ScoreOne, PerplexityIsTheSumOverWindows) {
  const std::vector<int32_t> a = random_tokens(30, 37, 1), b = random_tokens(4, 37, 2);
  PerplexityMeter whole(model_, 12, 12), sliding(model_, 8, 2);
  for (const auto& document : {a, b, std::vector<int32_t>{5}}) whole.add(document), sliding.add(document);
  const auto slice = [&](int64_t from, int64_t to) {
    return std::vector<int32_t>(a.begin() + from, a.begin() + to);
  };
  double expected = 0;
  for (const auto& part : {slice(0, 13), slice(12, 25), slice(24, 30), b})
    for (const Expected& e : by_hand(config_, part)) expected += e.log_prob;
  EXPECT_NEAR(whole.total().log_likelihood, expected, 1e-9);
  EXPECT_EQ(whole.total().num_tokens, 29 + 3);
  EXPECT_EQ(whole.num_documents(), 3);
  expected = 0;
  for (const auto& part : {slice(0, 9), b})
    for (const Expected& e : by_hand(config_, part)) expected += e.log_prob;
  for (int64_t begin = 2; begin + 6 < 29; begin += 2) {
    const int64_t end = std::min<int64_t>(30, begin + 9);
    const auto e = by_hand(config_, slice(begin, end));
    for (size_t i = 6; i < e.size(); ++i) expected += e[i].log_prob;
  }
  EXPECT_NEAR(sliding.total().log_likelihood, expected, 1e-9);
  EXPECT_EQ(sliding.total().num_tokens, 29 + 3);
}

TEST_F(ScoreOne, TokensThatDoNotCountInTheLossAreNotScored) {
  const std::vector<int32_t> a = random_tokens(30, 37, 1);
  std::vector<uint8_t> mask(a.size(), 0);
  for (size_t i : {0, 3, 4, 12, 13, 29}) mask[i] = 1;
  PerplexityMeter masked(model_, 12, 12), nothing(model_, 12, 12);
  masked.add(a, mask);
  double expected = 0;
  for (int64_t begin = 0; begin < 29; begin += 12) {
    const std::vector<int32_t> part(a.begin() + begin, a.begin() + std::min<int64_t>(30, begin + 13));
    const std::vector<Expected> all = by_hand(config_, part);
    for (size_t i = 0; i < all.size(); ++i)
      if (mask[size_t(begin) + i + 1]) expected += all[i].log_prob;
  }
  EXPECT_NEAR(masked.total().log_likelihood, expected, 1e-9);
  EXPECT_EQ(masked.total().num_tokens, 5) << "the first token of a document has nothing before it";
  EXPECT_EQ(masked.num_tokens(), 29);
  nothing.add(a, std::vector<uint8_t>(a.size(), 0));
  EXPECT_EQ(nothing.total().num_tokens, 0);
}

// One token per letter; "ab" is one token of its own, so that a cut inside it shows.
std::vector<int32_t> toy_encode(std::string_view text) {
  std::vector<int32_t> out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i, 2) == "ab")
      out.push_back(300), ++i;
    else
      out.push_back(static_cast<unsigned char>(text[i]));
  }
  return out;
}

TEST(EncodePair, FollowsTheHarness) {
  using Ids = std::vector<int32_t>;
  const auto pair = [](const std::string& context, const std::string& continuation) {
    return encode_pair(context, continuation, toy_encode, 256);
  };
  EXPECT_EQ(pair("xy", "z").tokens, (Ids{'x', 'y', 'z'}));
  EXPECT_EQ(pair("xy", "z").first_scored, 2);
  EXPECT_EQ(pair("x \t", "z").tokens, (Ids{'x', ' ', '\t', 'z'})) << "space moves to the continuation";
  EXPECT_EQ(pair("x \t", "z").first_scored, 1);
  EXPECT_EQ(pair("x\xe3\x80\x80", "z").first_scored, 1) << "an ideographic space is space";
  EXPECT_EQ(pair("xa", "bz").tokens, (Ids{'x', 300, 'z'})) << "encoded together";
  EXPECT_EQ(pair("xa", "bz").first_scored, 2);
  EXPECT_EQ(pair("", "z").tokens, (Ids{256, 'z'}));
  EXPECT_EQ(pair("", "z").first_scored, 1);
  EXPECT_EQ(pair("  ", "z").tokens, (Ids{256, ' ', ' ', 'z'}));
  EXPECT_THROW(encode_pair("", "z", toy_encode, std::nullopt), base::Error);
}

class Requests : public ::testing::Test {
 protected:
  Requests()
      : folder_(std::filesystem::temp_directory_path() / ("pleat-requests-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
    options_.max_length = 8;
    options_.prefix_token = 256;
  }
  ~Requests() override { std::filesystem::remove_all(folder_); }
  RequestFile read(const std::string& text) {
    std::ofstream(path()) << text;
    return read_requests(path(), &vocabulary_, options_);
  }
  std::string refused(const std::string& text) {
    return pleat::testing::message_of([&] { read(text); });
  }
  std::string path() const { return (folder_ / "requests.jsonl").string(); }
  std::filesystem::path folder_;
  Vocabulary vocabulary_{"byte"};
  RequestOptions options_;
};

TEST_F(Requests, FormsAndAnswers) {
  const RequestFile file = read(R"({"context": "ab", "continuation": "cd", "id": 7, "doc": {"x": [1]}}

{"arguments": ["", "q"]}
{"tokens": [1, 2, 3], "num_context_tokens": 2}
{"text": "0123456789"}
{"context": "0123456789", "continuation": "ab"}
)");
  ASSERT_EQ(file.extra.size(), 5u);
  ASSERT_EQ(file.first_window, (std::vector<size_t>{0, 1, 2, 3, 5, 6}));
  EXPECT_EQ(file.requests[0].tokens, (std::vector<int32_t>{'a', 'b', 'c', 'd'}));
  EXPECT_EQ(file.requests[0].first_scored, 2);
  EXPECT_EQ(file.requests[1].tokens, (std::vector<int32_t>{256, 'q'}));
  EXPECT_EQ(file.requests[2].first_scored, 2);
  // Rolling: a full first window, then the rest with as much context as fits.
  EXPECT_EQ(file.requests[3].tokens, (std::vector<int32_t>{256, '0', '1', '2', '3', '4', '5', '6', '7'}));
  EXPECT_EQ(file.requests[4].tokens, (std::vector<int32_t>{'1', '2', '3', '4', '5', '6', '7', '8', '9'}));
  EXPECT_EQ(file.requests[4].num_scored(), 2);
  // Nine tokens give eight inputs.
  EXPECT_EQ(file.requests[5].tokens, (std::vector<int32_t>{'3', '4', '5', '6', '7', '8', '9', 'a', 'b'}));
  EXPECT_EQ(file.requests[5].first_scored, 7);
  EXPECT_EQ(file.num_truncated, 1);

  const std::string out = (folder_ / "out.jsonl").string();
  write_answers(
      out, file,
      {{-1.5, true, 2}, {-2, false, 1}, {-3, true, 1}, {-4, true, 8}, {-0.5, false, 2}, {-6, true, 2}});
  std::ifstream in(out);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0],
            nlohmann::json::parse(
                R"({"id":7,"doc":{"x":[1]},"loglikelihood":-1.5,"is_greedy":true,"num_tokens":2})"));
  EXPECT_EQ(lines[1], nlohmann::json::parse(R"({"loglikelihood":-2.0,"is_greedy":false,"num_tokens":1})"));
  EXPECT_EQ(lines[3], nlohmann::json::parse(R"({"loglikelihood":-4.5,"num_tokens":10})"));
  EXPECT_THROW(write_answers((folder_ / "no" / "out").string(), file, std::vector<Score>(6)), base::Error);
}

std::vector<nlohmann::json> lines_of(const std::string& path) {
  std::ifstream in(path);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TEST_F(Requests, FilesOfLogSamplesAreTaken) {
  const RequestFile file = read(
      R"({"doc_id": 3, "arguments": {"gen_args_1": {"arg_0": "ab", "arg_1": "x"}, "gen_args_0": {"arg_0": "ab", "arg_1": "cd"}}}
{"arguments": [["ab", "cd"], ["ab", "x"]]}
{"arguments": {"gen_args_0": {"arg_0": "0123456789"}}}
)");
  ASSERT_EQ(file.extra.size(), 3u);
  EXPECT_EQ(file.first_request, (std::vector<size_t>{0, 2, 4, 5}));
  EXPECT_EQ(file.first_window, (std::vector<size_t>{0, 1, 2, 3, 4, 6}));
  EXPECT_EQ(file.requests[0].tokens, (std::vector<int32_t>{'a', 'b', 'c', 'd'}));
  EXPECT_EQ(file.requests[1].tokens, (std::vector<int32_t>{'a', 'b', 'x'}));
  EXPECT_EQ(file.requests[2].tokens, file.requests[0].tokens);
  const std::string out = (folder_ / "out.jsonl").string();
  write_answers(out, file,
                {{-1, true, 2}, {-2, false, 1}, {-1, true, 2}, {-2, false, 1}, {-4, true, 8}, {-1, true, 2}});
  const std::vector<nlohmann::json> lines = lines_of(out);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0],
            nlohmann::json::parse(
                R"({"doc_id":3,"loglikelihood":[-1.0,-2.0],"is_greedy":[true,false],"num_tokens":[2,1]})"));
  EXPECT_EQ(lines[2], nlohmann::json::parse(R"({"loglikelihood":[-5.0],"num_tokens":[10]})"));
  EXPECT_NE(refused(R"({"arguments": {"gen_args_0": {"arg_0": "a", "arg_1": {"until": ["x"]}}}})")
                .find("generate_until"),
            std::string::npos);
}

TEST_F(Requests, BadLinesNameFileAndLine) {
  const std::string good = "{\"context\": \"a\", \"continuation\": \"b\"}\n";
  for (const char* line : {"{\"context\": \"a\"",
                           "[1]",
                           "7",
                           "{}",
                           "{\"context\": \"a\"}",
                           "{\"continuation\": \"a\"}",
                           "{\"context\": 1, \"continuation\": \"a\"}",
                           "{\"context\": \"a\", \"continuation\": null}",
                           "{\"arguments\": []}",
                           "{\"arguments\": [\"a\", \"b\", \"c\"]}",
                           "{\"arguments\": [\"a\", 1]}",
                           "{\"arguments\": 3}",
                           "{\"arguments\": {}}",
                           "{\"arguments\": {\"gen_args_1\": {\"arg_0\": \"a\"}}}",
                           "{\"arguments\": {\"gen_args_0\": {\"arg_1\": \"a\"}}}",
                           "{\"arguments\": [[\"a\"], [\"a\", \"b\"]]}",
                           "{\"arguments\": [[]]}",
                           "{\"context\": \"a\", \"continuation\": \"\"}",
                           "{\"context\": \"a\", \"continuation\": \"123456789\"}",
                           "{\"tokens\": [1]}",
                           "{\"tokens\": [1, -2]}",
                           "{\"tokens\": [1, 2.5]}",
                           "{\"tokens\": [1, 99999999999]}",
                           "{\"tokens\": [1, 2], \"num_context_tokens\": 0}",
                           "{\"tokens\": [1, 2], \"num_context_tokens\": 2}",
                           "{\"text\": \"a\", \"tokens\": [1, 2]}",
                           "{\"text\": \"\"}",
                           "{\"tokens\": [1, 2], \"is_greedy\": true}",
                           "{\"text\": \"\xff\"}"}) {
    const std::string message = refused(good + "\n" + line + "\n");
    EXPECT_TRUE(message.starts_with(path() + ":3: ")) << line << "\n" << message;
  }
  EXPECT_NE(refused("{\"text\": \"\"}").find("nothing to score"), std::string::npos);
  std::ofstream(path()) << good;
  EXPECT_THROW(read_requests(path(), nullptr, options_), base::Error);
  EXPECT_THROW(read_requests(path() + "x", &vocabulary_, options_), base::Error);
}

}  // namespace
}  // namespace pleat::infer::testing
