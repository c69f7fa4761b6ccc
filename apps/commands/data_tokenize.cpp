#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "base/error.h"
#include "commands/data.h"
#include "data/prepare.h"
#include "data/tokenizer/open_tokenizer.h"
#include "report/format.h"

namespace pleat::apps {
namespace {

struct DataTokenizeArguments {
  data::PrepareOptions options;
  std::string tokenizer, end_of_document, format = "auto";
  double split = 0;
  std::string chat, chat_begin, chat_end;
  std::vector<std::string> chat_prefixes, chat_suffixes;
  bool json = false;
};

// A shell's argument may write line ends and tabs as \n and \t, and a backslash as two.
std::string unescaped(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    ++i;
    if (text[i] == 'n')
      out += '\n';
    else if (text[i] == 't')
      out += '\t';
    else if (text[i] == '\\')
      out += '\\';
    else
      base::fail("'{}': \\{} is no escape; known are \\n, \\t and \\\\", text, text[i]);
  }
  return out;
}

// "role=TEXT" of --chat-prefix and --chat-suffix.
void set_role(data::ChatTemplate& t, const std::string& given, std::string data::ChatTemplate::Role::*field,
              const char* option) {
  const size_t equals = given.find('=');
  if (equals == 0 || equals == std::string::npos)
    base::fail("{} '{}': needed is role=TEXT, as in user='User: '", option, given);
  t.roles[given.substr(0, equals)].*field = unescaped(given.substr(equals + 1));
}

std::optional<data::ChatTemplate> chat_template(const DataTokenizeArguments& a) {
  const bool strings =
      !a.chat_begin.empty() || !a.chat_end.empty() || !a.chat_prefixes.empty() || !a.chat_suffixes.empty();
  if (a.chat != "custom" && strings)
    base::fail("--chat-begin, --chat-end, --chat-prefix and --chat-suffix need --chat custom");
  if (a.chat.empty()) return std::nullopt;
  if (a.chat != "custom") return data::chat_preset(a.chat);
  data::ChatTemplate t;
  t.name = "custom";
  t.begin = unescaped(a.chat_begin);
  t.end = unescaped(a.chat_end);
  for (const std::string& given : a.chat_prefixes)
    set_role(t, given, &data::ChatTemplate::Role::prefix, "--chat-prefix");
  for (const std::string& given : a.chat_suffixes)
    set_role(t, given, &data::ChatTemplate::Role::suffix, "--chat-suffix");
  if (!t.roles.contains("assistant"))
    base::fail("--chat custom needs --chat-prefix or --chat-suffix for the role assistant");
  return t;
}

nlohmann::ordered_json side_json(const data::PreparedDataset& d, bool mask) {
  nlohmann::ordered_json out = {{"prefix", d.prefix},
                                {"documents", d.num_documents},
                                {"tokens", d.num_tokens},
                                {"bytes", d.num_text_bytes}};
  if (mask) out["loss_tokens"] = d.num_loss_tokens;
  return out;
}

void print_side(const data::PreparedDataset& d, bool mask) {
  fmt::print("{}: {}, {}{}, {:.2f} bytes per token\n", d.prefix, base::counted(d.num_documents, "document"),
             base::counted(d.num_tokens, "token"),
             mask ? fmt::format(" ({} count in the loss)", d.num_loss_tokens) : "",
             double(d.num_text_bytes) / double(std::max<int64_t>(d.num_tokens, 1)));
}

int tokenize(DataTokenizeArguments& a) {
  data::PrepareOptions& o = a.options;
  o.chat = chat_template(a);
  if (a.split != 0) o.split = a.split;
  if (a.format != "auto") o.format = a.format == "text" ? data::InputFormat::Text : data::InputFormat::Jsonl;
  o.separator = unescaped(o.separator);
  const auto tokenizer = data::open_tokenizer(a.tokenizer, {.end_of_document = a.end_of_document});
  tokenizer->end_of_document();  // throws now rather than after the first batch
  const std::string remark = tokenizer->not_applied();
  if (!remark.empty() && !a.json) fmt::print("note: {}\n", remark);
  o.tokenizer_path = data::absolute_tokenizer(a.tokenizer);
  Meter meter;
  o.progress = [&](const data::PrepareProgress& p) {
    meter.show(double(p.bytes_read), double(p.bytes_total),
               fmt::format("{} of {}, {}, {}, {}/s", report::format_bytes(double(p.bytes_read)),
                           report::format_bytes(double(p.bytes_total)),
                           base::counted(p.num_documents, "document"), base::counted(p.num_tokens, "token"),
                           report::format_bytes(double(p.bytes_read) / std::max(meter.seconds(), 1e-3))));
  };
  const data::PrepareResult r = data::prepare(o, *tokenizer);
  meter.finish();
  const bool mask = o.chat.has_value();
  if (a.json) {
    nlohmann::ordered_json out = {{"train", side_json(r.train, mask)}};
    if (r.validation) out["validation"] = side_json(*r.validation, mask);
    out["empty_documents"] = r.num_empty_documents;
    if (mask) out["conversations_without_loss"] = r.num_unlearned;
    for (const auto& form : r.forms)
      if (form) out["forms"].push_back(data::chat_form_name(*form));
    out["vocab_size"] = tokenizer->vocab_size();
    out["end_of_document"] = tokenizer->end_of_document();
    out["tokenizer_sha256"] = tokenizer->tokenizer_hash();
    if (!remark.empty()) out["note"] = remark;
    out["seconds"] = meter.seconds();
    fmt::print("{}\n", out.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return 0;
  }
  for (size_t i = 0; i < r.forms.size(); ++i)
    if (r.forms[i])
      fmt::print("{}: conversations in {} form\n", o.inputs[i], data::chat_form_name(*r.forms[i]));
  print_side(r.train, mask);
  if (r.validation) print_side(*r.validation, mask);
  if (r.num_empty_documents) fmt::print("{} empty documents left out\n", r.num_empty_documents);
  if (r.num_unlearned) fmt::print("{} conversations hold nothing that counts in the loss\n", r.num_unlearned);
  return 0;
}

}  // namespace

void add_data_tokenize(CLI::App& command, Action& chosen) {
  auto a = std::make_shared<DataTokenizeArguments>();
  CLI::App* c = &command;
  c->add_option("inputs", a->options.inputs,
                "Text or JSONL files, by name: .jsonl, .ndjson and .json are JSONL; "
                ".gz or .zst may follow")
      ->required();
  c->add_option(
       "--tokenizer", a->tokenizer,
       "byte, or a tokenizer.json, .model, tekken.json or .tiktoken file, or a folder that holds one; "
       "FAMILY:FILE names the family of a rank file")
      ->required();
  c->add_option("--out", a->options.output_prefix, "Prefix of the files to write")->required();
  c->add_option("--split", a->split, "Share of the training side; the rest becomes PREFIX-validation");
  c->add_option("--separator", a->options.separator,
                "Cut text into documents at this string (\\n for a line end)");
  c->add_option("--key", a->options.json_key, "JSONL key that holds the text")->capture_default_str();
  c->add_option("--format", a->format, "auto (by name), text or jsonl")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "text", "jsonl"}));
  c->add_option("--eod", a->end_of_document, "Token that ends a document, by number or spelling");
  c->add_option("--threads", a->options.num_threads,
                "Threads; 0: all cores. The output does not depend on it");
  c->add_option(
       "--chat", a->chat,
       "Lines are conversations: tokenizer (the chat template of its folder), chatml, llama3, plain, or "
       "custom with the strings below")
      ->check(CLI::IsMember({"tokenizer", "chatml", "llama3", "plain", "custom"}));
  c->add_option("--chat-begin", a->chat_begin, "Before the first message");
  c->add_option("--chat-end", a->chat_end, "After the last message");
  c->add_option("--chat-prefix", a->chat_prefixes, "ROLE=TEXT before a message of this role (repeatable)")
      ->allow_extra_args(false);
  c->add_option("--chat-suffix", a->chat_suffixes, "ROLE=TEXT after a message of this role (repeatable)")
      ->allow_extra_args(false);
  c->add_flag("--json", a->json, "Print the result as JSON");
  add_example(
      *c, "pleat data tokenize corpus.jsonl --tokenizer model/tokenizer.json --out data/corpus --split 0.95");
  c->callback([a, &chosen] { chosen = [a] { return tokenize(*a); }; });
}

}  // namespace pleat::apps
