#include "train/run_tokenizer.h"

#include "base/error.h"
#include "config/validate.h"
#include "data/dataset_info.h"
#include "data/tokenizer/open_tokenizer.h"

namespace pleat::train {
namespace {

void check_fits(const std::string& what, int64_t num_ids, const config::Config& c) {
  if (c.model.vocab_size > 0 && num_ids > c.model.vocab_size)
    base::fail("{} has {} ids, but model.vocab_size = {}; the model needs at least as many", what, num_ids,
               c.model.vocab_size);
}

std::shared_ptr<data::TextTokenizer> open(const config::Config& c) {
  return data::open_tokenizer(c.data.tokenizer, {.end_of_document = c.data.end_of_document});
}

}  // namespace

std::shared_ptr<data::TextTokenizer> open_run_tokenizer(const config::Config& c) {
  std::shared_ptr<data::TextTokenizer> tokenizer = open(c);
  check_fits(fmt::format("data.tokenizer = \"{}\"", c.data.tokenizer), tokenizer->vocab_size(), c);
  return tokenizer;
}

config::Config with_vocabulary(const config::Config& config) {
  config::Config c = config;
  if (c.model.vocab_size == 0 && c.data.tokenizer != "byte") c.model.vocab_size = open(c)->vocab_size();
  config::validate_vocabulary(c);
  return c;
}

std::string check_tokenizer(const config::Config& c) {
  std::vector<std::pair<std::string, std::string>> named = {{"data.train", c.data.train},
                                                            {"data.valid", c.data.valid}};
  for (const std::string& source : c.data.sources) named.emplace_back("data.sources", source);
  // "byte" is also what is there when nobody said anything: without a description it binds nothing.
  std::shared_ptr<data::TextTokenizer> tokenizer;
  if (c.data.tokenizer != "byte") tokenizer = open_run_tokenizer(c);
  for (const auto& [key, prefix] : named) {
    if (prefix.empty()) continue;
    const std::optional<data::DatasetInfo> info = data::read_dataset_info(prefix);
    if (!info) continue;
    if (!tokenizer) tokenizer = open(c);
    if (info->tokenizer_sha256 != tokenizer->tokenizer_hash())
      base::fail(
          "{} = \"{}\" was tokenized with {} (sha256 {}), but data.tokenizer = \"{}\" (sha256 {}); set "
          "data.tokenizer to the one the data was made with, or tokenize again",
          key, prefix, info->tokenizer, info->tokenizer_sha256.substr(0, 16), c.data.tokenizer,
          tokenizer->tokenizer_hash().substr(0, 16));
    check_fits(fmt::format("the tokenizer of {} = \"{}\"", key, prefix), info->vocab_size, c);
  }
  return tokenizer ? tokenizer->not_applied() : std::string();
}

data::ChatTemplate chat_template_of(const config::ChatConfig& chat) {
  if (chat.template_name != "custom") return data::chat_preset(chat.template_name);
  data::ChatTemplate t;
  t.name = chat.template_name;
  t.begin = chat.begin;
  t.end = chat.end;
  const std::tuple<const char*, const std::string&, const std::string&> roles[] = {
      {"system", chat.system_prefix, chat.system_suffix},
      {"user", chat.user_prefix, chat.user_suffix},
      {"assistant", chat.assistant_prefix, chat.assistant_suffix},
      {"tool", chat.tool_prefix, chat.tool_suffix}};
  for (const auto& [name, prefix, suffix] : roles)
    if (!prefix.empty() || !suffix.empty()) t.roles[name] = {prefix, suffix};
  return t;
}

std::vector<data::DatasetInfo> described_datasets(const config::DataConfig& d) {
  std::vector<std::string> prefixes = d.sources;
  if (!d.train.empty()) prefixes.push_back(d.train);
  std::vector<data::DatasetInfo> out;
  for (const std::string& prefix : prefixes)
    if (const auto info = data::read_dataset_info(prefix)) out.push_back(*info);
  return out;
}

std::optional<data::ChatTemplate> run_chat_template(const config::Config& c) {
  if (c.chat.template_name != "none") return chat_template_of(c.chat);
  std::optional<data::ChatTemplate> out;
  for (const data::DatasetInfo& info : described_datasets(c.data))
    if (!info.chat_template.empty() && info.chat_template != "custom")
      out = data::chat_preset(info.chat_template);
  return out;
}

}  // namespace pleat::train
