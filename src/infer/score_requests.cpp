#include "infer/score_requests.h"

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/foreign_text.h"
#include "data/tokenizer/json_fields.h"
#include "data/tokenizer/utf8.h"

namespace pleat::infer {
namespace {

using nlohmann::json;

// What Python's str.isspace calls space.
bool is_space(uint32_t c) { return data::is_white_space(c) || (c >= 0x1c && c <= 0x1f); }

size_t length_without_trailing_space(const std::string& text) {
  size_t size = text.size();
  while (size > 0) {
    size_t at = data::previous_character(text, size);
    const size_t start = at;
    if (!is_space(data::next_code_point(text, at))) break;
    size = start;
  }
  return size;
}

class Reader {
 public:
  Reader(const std::string& path, const Vocabulary* vocabulary, const RequestOptions& options)
      : path_(path), vocabulary_(vocabulary), o_(options) {}

  RequestFile read() {
    std::ifstream in(path_, std::ios::binary);
    if (!in) base::fail_with(base::ExitCode::Storage, "cannot open '{}'", path_);
    std::string text;
    while (std::getline(in, text)) {
      if (++line_ == 1) base::refuse_lfs_pointer(text, path_);
      if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
      out_.first_request.push_back(out_.first_window.size());
      add(text);
    }
    if (in.bad()) base::fail_with(base::ExitCode::Storage, "cannot read '{}'", path_);
    out_.first_request.push_back(out_.first_window.size());
    out_.first_window.push_back(out_.requests.size());
    return std::move(out_);
  }

 private:
  template <class... Args>
  [[noreturn]] void bad(fmt::format_string<Args...> format, Args&&... args) const {
    base::fail("{}:{}: {}", path_, line_, fmt::format(format, std::forward<Args>(args)...));
  }

  const std::string& string_of(const json& value, const char* what) const {
    if (!value.is_string()) bad("{} is {}, needed a string", what, value.type_name());
    return value.get_ref<const std::string&>();
  }

  void add(const std::string& text) {
    json line = data::parse_json_line(text, fmt::format("{}:{}", path_, line_));
    if (!line.is_object()) bad("a request is {}, needed an object", line.type_name());
    const bool pair = line.contains("context") || line.contains("continuation");
    const int forms = int(pair) + int(line.contains("arguments")) + int(line.contains("text")) +
                      int(line.contains("tokens"));
    if (forms != 1)
      bad("needed exactly one of \"context\" with \"continuation\", \"arguments\", \"text\", \"tokens\"");
    bool rolling = false, listed = false;
    if (pair) {
      if (!line.contains("context") || !line.contains("continuation"))
        bad("\"context\" and \"continuation\" are needed together");
      add_pair(string_of(line["context"], "\"context\""),
               string_of(line["continuation"], "\"continuation\""));
      line.erase("context"), line.erase("continuation");
    } else if (line.contains("arguments")) {
      const std::vector<std::vector<json>> all = arguments_of(line["arguments"], listed);
      for (const std::vector<json>& a : all) {
        if (a.size() != all.front().size()) bad("the requests have one argument here and two there");
        add_arguments(a);
      }
      rolling = all.front().size() == 1;
      line.erase("arguments");
    } else if (line.contains("text")) {
      rolling = true;
      add_rolling(string_of(line["text"], "\"text\""));
      line.erase("text");
    } else {
      add_tokens(line);
      line.erase("tokens"), line.erase("num_context_tokens");
    }
    for (const char* name : {"loglikelihood", "is_greedy", "num_tokens"})
      if (line.contains(name)) bad("\"{}\" is a member of the answer and cannot be carried along", name);
    out_.listed.push_back(listed);
    out_.extra.push_back(line.dump());
    out_.rolling.push_back(rolling);
  }

  // The requests of one line: ["context", "continuation"]; a list of such; or {"gen_args_0": {"arg_0": ...}}.
  std::vector<std::vector<json>> arguments_of(const json& a, bool& listed) const {
    listed = a.is_object() || (a.is_array() && !a.empty() && a[0].is_array());
    std::vector<std::vector<json>> out;
    if (a.is_object()) {
      for (size_t i = 0; i < a.size(); ++i) {
        const auto request = a.find(fmt::format("gen_args_{}", i));
        if (request == a.end() || !request->is_object())
          bad("\"arguments\" needs an object \"gen_args_{}\" for its request {}", i, i + 1);
        std::vector<json>& one = out.emplace_back();
        for (size_t j = 0; j < request->size(); ++j) {
          const auto argument = request->find(fmt::format("arg_{}", j));
          if (argument == request->end()) bad("\"gen_args_{}\" has no \"arg_{}\"", i, j);
          one.push_back(*argument);
        }
      }
    } else if (listed) {
      for (const json& one : a) {
        if (!one.is_array()) bad("\"arguments\" holds {} among its lists", one.type_name());
        out.emplace_back(one.begin(), one.end());
      }
    } else if (a.is_array()) {
      out.emplace_back(a.begin(), a.end());
    }
    if (out.empty()) bad("\"arguments\" must hold one or two strings, or a list of such requests");
    return out;
  }

  void add_arguments(const std::vector<json>& a) {
    if (a.empty() || a.size() > 2) bad("a request of \"arguments\" must be one or two strings");
    if (a.size() == 2 && a[1].is_object())
      bad("the request asks for text (generate_until), not for a likelihood; use `pleat generate`");
    if (a.size() == 1)
      add_rolling(string_of(a[0], "the argument"));
    else
      add_pair(string_of(a[0], "the first argument"), string_of(a[1], "the second argument"));
  }

  // Every request begins with this.
  void begin_request() { out_.first_window.push_back(out_.requests.size()); }

  std::vector<int32_t> encode(std::string_view text) const {
    if (!vocabulary_) bad("text needs a tokenizer; give one with --tokenizer, or raw ids as \"tokens\"");
    return vocabulary_->encode(text, o_.special_tokens);
  }

  void add_pair(const std::string& context, const std::string& continuation) {
    ScoreRequest r;
    try {
      r = encode_pair(
          context, continuation, [&](std::string_view text) { return encode(text); }, o_.prefix_token);
    } catch (const base::Error& e) {
      if (std::string_view(e.what()).starts_with(path_)) throw;
      bad("{}", e.what());
    }
    add_one(std::move(r));
  }

  void add_one(ScoreRequest r) {
    begin_request();
    if (r.num_scored() < 1) bad("there is nothing to score");
    if (r.num_scored() > o_.max_length)
      bad("the continuation has {} tokens, the model's context is {}", r.num_scored(), o_.max_length);
    if (const int64_t surplus = r.num_rows() - o_.max_length; surplus > 0) {
      r.tokens.erase(r.tokens.begin(), r.tokens.begin() + surplus);
      r.first_scored -= surplus;
      ++out_.num_truncated;
    }
    out_.requests.push_back(std::move(r));
  }

  void add_rolling(const std::string& text) {
    std::vector<int32_t> tokens = encode(text);
    if (!o_.prefix_token) bad("the tokenizer names no begin or end token to start from; give --prefix-token");
    tokens.insert(tokens.begin(), *o_.prefix_token);
    if (tokens.size() < 2) bad("there is nothing to score");
    begin_request();
    for_each_window(tokens, o_.max_length, o_.max_length, true,
                    [&](ScoreRequest&& r) { out_.requests.push_back(std::move(r)); });
  }

  void add_tokens(const json& line) {
    const json& list = line["tokens"];
    if (!list.is_array()) bad("\"tokens\" is {}, needed a list of ids", list.type_name());
    ScoreRequest r;
    for (const json& id : list) {
      if (!id.is_number_integer() || id < 0 || id > INT32_MAX) bad("token {} is no id", id.dump());
      r.tokens.push_back(id.get<int32_t>());
    }
    if (line.contains("num_context_tokens")) {
      const json& n = line["num_context_tokens"];
      if (!n.is_number_integer() || n < 1 || n > int64_t(r.tokens.size()))
        bad("\"num_context_tokens\" is {}, needed 1 to {}", n.dump(), r.tokens.size());
      r.first_scored = n.get<int64_t>();
    }
    if (r.tokens.size() < 2) bad("\"tokens\" needs at least two ids");
    add_one(std::move(r));
  }

  const std::string& path_;
  const Vocabulary* vocabulary_;
  const RequestOptions& o_;
  int64_t line_ = 0;
  RequestFile out_;
};

}  // namespace

ScoreRequest encode_pair(const std::string& context, const std::string& continuation,
                         const std::function<std::vector<int32_t>(std::string_view)>& encode,
                         std::optional<int32_t> prefix_token) {
  ScoreRequest r;
  r.tokens = encode(context + continuation);
  const std::vector<int32_t> alone = encode(context.substr(0, length_without_trailing_space(context)));
  if (alone.empty()) {
    if (!prefix_token)
      base::fail(
          "an empty context needs a begin or end token, and the tokenizer names none; give --prefix-token");
    // A continuation that brings the prefix token along is not given it twice.
    if (r.tokens.empty() || r.tokens.front() != *prefix_token)
      r.tokens.insert(r.tokens.begin(), *prefix_token);
    return r;
  }
  if (alone.size() > r.tokens.size())
    base::fail("context and continuation together have {} tokens, the context alone {}", r.tokens.size(),
               alone.size());
  r.first_scored = static_cast<int64_t>(alone.size());
  return r;
}

RequestFile read_requests(const std::string& path, const Vocabulary* vocabulary,
                          const RequestOptions& options) {
  return Reader(path, vocabulary, options).read();
}

void write_answers(const std::string& path, const RequestFile& file, const std::vector<Score>& scores) {
  const std::string part = path + ".part";
  std::ofstream out(part, std::ios::binary | std::ios::trunc);
  for (size_t i = 0; i < file.extra.size(); ++i) {
    json line = json::parse(file.extra[i]);
    for (size_t r = file.first_request[i]; r < file.first_request[i + 1]; ++r) {
      double sum = 0;
      bool greedy = true;
      int64_t tokens = 0;
      for (size_t w = file.first_window[r]; w < file.first_window[r + 1]; ++w)
        sum += scores[w].log_likelihood, greedy &= scores[w].is_greedy, tokens += scores[w].num_tokens;
      const auto put = [&](const char* name, const auto& value) {
        if (file.listed[i])
          line[name].push_back(value);
        else
          line[name] = value;
      };
      put("loglikelihood", sum);
      if (!file.rolling[i]) put("is_greedy", greedy);
      put("num_tokens", tokens);
    }
    out << line.dump() << '\n';
  }
  out.close();
  if (!out || std::rename(part.c_str(), path.c_str()) != 0) {
    std::remove(part.c_str());
    base::fail_with(base::ExitCode::Storage, "cannot write '{}'", path);
  }
}

}  // namespace pleat::infer
