// Keys of [data] and [chat].
#include <algorithm>

#include "base/text_name.h"
#include "config/schema.h"

namespace pleat::config {

namespace {

// Whether some file named in [data] is of this kind. Nothing named yet: a file to plan with, which may still
// say how text would be read.
bool may_read(const Config& c, base::TextKind kind) {
  if (c.data.train.empty() && c.data.sources.empty()) return true;
  const auto is = [&](const std::string& path) { return base::text_name(path).kind == kind; };
  return is(c.data.train) || is(c.data.valid) ||
         std::any_of(c.data.sources.begin(), c.data.sources.end(), is);
}

Condition may_read_jsonl() {
  return {"data.train, data.sources or data.valid holds a .jsonl file",
          {"data.train", "data.sources", "data.valid"},
          [](const Config& c) { return may_read(c, base::TextKind::Jsonl); }};
}

Condition has_custom_template() {
  return {"chat.template is \"custom\"", {"chat.template"}, [](const Config& c) {
            return c.chat.template_name == "custom";
          }};
}

void add_data_keys(std::vector<Key>& keys) {
  using D = DataConfig;
  const auto key = [](const char* name, auto D::*field, std::string meaning) {
    return make_key(std::string("data.") + name, &Config::data, field, std::move(meaning));
  };
  keys.push_back(
      key("train", &D::train,
          "Training data: the path of a .bin/.idx pair without its ending, or a .txt or .jsonl file (.gz or "
          ".zst may follow) that is tokenized first. Needed to train, not to plan.")
          .names_file()
          .see({"data.sources", "data.valid", "data.tokenizer"}));
  keys.push_back(
      key("sources", &D::sources,
          "Training data from several places at once, each named as in data.train, which then stays empty. "
          "Sequences are taken so that after each one every source is as close to its share as whole "
          "sequences allow; each source has epochs of its own.")
          .names_file()
          .see({"data.weights", "data.train"}));
  keys.push_back(
      key("weights", &D::weights,
          "Share of each of data.sources in the sequences trained on, in their order. Only the ratios count.")
          .above(0, 1e9)
          .when({"data.sources is given",
                 {"data.sources"},
                 [](const Config& c) { return !c.data.sources.empty(); }})
          .see({"data.sources"}));
  keys.push_back(key("valid", &D::valid, "Validation data, as data.train. Empty: see data.valid_split.")
                     .names_file()
                     .on_resume(OnResume::Free)
                     .see({"data.valid_split", "train.eval_every"}));
  keys.push_back(
      key("tokenizer", &D::tokenizer,
          "How text becomes tokens. byte: one token per byte. Otherwise the path of a tokenizer.json, a "
          "SentencePiece .model, a tekken.json, a .tiktoken or tiktoken.model file, or a folder that holds "
          "one; a "
          "rank file whose name does not tell its family takes it in front, as in "
          "llama3:path/tokenizer.model.")
          .names_file()
          .see({"model.vocab_size", "data.end_of_document"}));
  keys.push_back(
      key("end_of_document", &D::end_of_document,
          "Token that ends a document, by its spelling or its number. Empty: the end token the tokenizer's "
          "files name.")
          .see({"data.tokenizer"}));
  keys.push_back(key("jsonl_key", &D::jsonl_key, "Member of each JSON line that holds the text.")
                     .when(may_read_jsonl())
                     .when({"chat.template is \"none\"", {"chat.template"}, [](const Config& c) {
                              return c.chat.template_name == "none";
                            }}));
  keys.push_back(
      key("separator", &D::separator,
          "Cuts a .txt file into documents wherever this string stands; it is left out of both sides. Empty: "
          "a file is one document.")
          .with_line_breaks()
          .when({"data.train, data.sources or data.valid holds a .txt file",
                 {"data.train", "data.sources", "data.valid"},
                 [](const Config& c) { return may_read(c, base::TextKind::Text); }}));
  keys.push_back(
      key("packing", &D::packing,
          "How documents fill sequences of train.seq_len tokens. stream: back to back, cut where a sequence "
          "ends. whole: none is cut; each goes into the first sequence with room for all of it, and what is "
          "left of a sequence is padding that counts nowhere; a document longer than a sequence stops the "
          "run. whole_drop: as whole, but longer documents are left out and counted. Where nothing is asked: "
          "whole if all training data are conversations, else stream.")
          .on_resume(OnResume::Never)
          .one_of({"stream", "whole", "whole_drop"})
          .see({"train.seq_len", "data.isolate_documents"}));
  keys.push_back(
      key("shuffle", &D::shuffle,
          "Samples come in a random order keyed by train.seed, another one in each epoch; otherwise in "
          "file order.")
          .on_resume(OnResume::Never)
          .see({"train.seed"}));
  keys.push_back(key("isolate_documents", &D::isolate_documents,
                     "Tokens attend within their own document only, and positions start again with each.")
                     .on_resume(OnResume::WithFlag));
  keys.push_back(
      key("valid_split", &D::valid_split, "Share of data.train held out for validation. 0 holds nothing out.")
          .below(0, 1)
          .when({"data.valid is empty", {"data.valid"}, [](const Config& c) { return c.data.valid.empty(); }})
          .see({"data.valid"}));
}

void add_chat_keys(std::vector<Key>& keys) {
  using C = ChatConfig;
  const auto key = [](const char* name, std::string C::*field, std::string meaning) {
    return make_key(std::string("chat.") + name, &Config::chat, field, std::move(meaning));
  };
  keys.push_back(
      key("template", &C::template_name,
          "none: a .jsonl file holds texts (data.jsonl_key). Otherwise its lines hold conversations (as "
          "OpenAI, ShareGPT or Alpaca write them, or prompt and completion), which this template writes out; "
          "only the "
          "assistant's words and what ends them count in the loss, unless a message says \"weight\": 0 or 1. "
          "tokenizer: the chat template in the tokenizer's folder, as transformers runs it. plain needs no "
          "special tokens; chatml and llama3 need theirs in the tokenizer.")
          .one_of({"none", "tokenizer", "chatml", "llama3", "plain", "custom"})
          .when(may_read_jsonl())
          .see({"data.tokenizer"}));
  const auto text = [&](const char* name, std::string C::*field, std::string meaning) {
    keys.push_back(key(name, field, std::move(meaning)).with_line_breaks().when(has_custom_template()));
  };
  text("begin", &C::begin, "Written before the first message of a conversation. Special tokens by spelling.");
  text("end", &C::end, "Written after the last message; the end-of-document token follows by itself.");
  text("system_prefix", &C::system_prefix, "Written before what the system says.");
  text("system_suffix", &C::system_suffix, "Written after what the system says.");
  text("user_prefix", &C::user_prefix, "Written before what the user says.");
  text("user_suffix", &C::user_suffix, "Written after what the user says.");
  text("assistant_prefix", &C::assistant_prefix, "Written before what the assistant says.");
  text("assistant_suffix", &C::assistant_suffix,
       "Written after what the assistant says, and learned with it: how an answer ends.");
  text("tool_prefix", &C::tool_prefix,
       "Written before what a tool says. A role whose prefix and suffix are both empty may not occur.");
  text("tool_suffix", &C::tool_suffix, "Written after what a tool says.");
}

}  // namespace

Condition has_validation_data() {
  return {"data.valid is given or data.valid_split > 0",
          {"data.valid", "data.valid_split"},
          [](const Config& c) { return !c.data.valid.empty() || c.data.valid_split > 0; }};
}

std::vector<Key> data_keys() {
  std::vector<Key> keys;
  add_data_keys(keys);
  add_chat_keys(keys);
  for (Key& key : keys)
    if (!key.resume) key.resume = OnResume::SameTokens;
  return keys;
}

}  // namespace pleat::config
