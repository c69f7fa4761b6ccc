#include "exchange/companion_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "data/byte_tokenizer.h"
#include "data/chat/open_chat.h"
#include "data/tokenizer/open_tokenizer.h"
#include "exchange/byte_tokenizer_files.h"
#include "exchange/jinja_template.h"
#include "train/run_tokenizer.h"

namespace pleat::exchange {
namespace {

using nlohmann::ordered_json;

std::string spelling_of(const data::TextTokenizer& tokenizer, int32_t id) {
  for (const data::SpecialToken& token : tokenizer.special_tokens())
    if (token.id == id) return token.spelling;
  return {};
}

void put(std::vector<SmallFile>& files, SmallFile file) {
  std::erase_if(files, [&](const SmallFile& f) { return f.name == file.name; });
  files.push_back(std::move(file));
}

ordered_json parsed_or_empty(const std::vector<SmallFile>& files, const char* name) {
  const SmallFile* file = find(files, name);
  if (!file) return ordered_json::object();
  ordered_json out = ordered_json::parse(file->text, nullptr, false);
  if (!out.is_object()) base::fail("{} of the model is no JSON object", name);
  return out;
}

void add_ids(const ordered_json& from, std::vector<int64_t>& ids) {
  for (const ordered_json& one : from.is_array() ? from : ordered_json::array({from}))
    if (one.is_number_integer() && std::find(ids.begin(), ids.end(), one.get<int64_t>()) == ids.end())
      ids.push_back(one.get<int64_t>());
}

ordered_json one_or_list(const std::vector<int64_t>& ids) {
  if (ids.empty()) return nullptr;
  return ids.size() == 1 ? ordered_json(ids.front()) : ordered_json(ids);
}

struct Ends {
  std::optional<int32_t> begin, document, turn;
};

Ends ends_of(const data::TextTokenizer& tokenizer, const std::optional<data::ChatTemplate>& chat) {
  Ends out;
  if (tokenizer.has_end_of_document()) out.document = tokenizer.end_of_document();
  const std::vector<int32_t> bare = tokenizer.encode("", data::EncodeOptions{.add_special_tokens = true});
  if (!bare.empty() && bare.front() != out.document) out.begin = bare.front();
  if (!chat) return out;
  const std::vector<int32_t> ends = data::open_chat(*chat, tokenizer)->end_of_answer();
  if (!ends.empty()) out.turn = ends.front();
  return out;
}

void write_generation_config(const Ends& ends, bool keeps_source_ids, const ordered_json& config_json,
                             std::vector<SmallFile>& files) {
  const bool has_one = find(files, "generation_config.json") != nullptr;
  if (keeps_source_ids && has_one && !ends.turn) return;
  ordered_json j = parsed_or_empty(files, "generation_config.json");
  std::vector<int64_t> ids;
  if (ends.turn) ids.push_back(*ends.turn);
  if (keeps_source_ids)
    add_ids(
        j.contains("eos_token_id") ? j["eos_token_id"] : config_json.value("eos_token_id", ordered_json()),
        ids);
  if (ends.document) add_ids(*ends.document, ids);
  if (!keeps_source_ids) {
    j.erase("pad_token_id");
    j["bos_token_id"] = ends.begin ? ordered_json(*ends.begin) : ordered_json(nullptr);
  }
  if (ids.empty() && !has_one) return;
  j["eos_token_id"] = one_or_list(ids);
  // What shorter texts of a batch are filled up with; nothing attends to it.
  if (!j.contains("pad_token_id") || j["pad_token_id"].is_null())
    j["pad_token_id"] = ids.empty() ? ordered_json(nullptr) : ordered_json(ids.back());
  put(files, {"generation_config.json", j.dump(2) + "\n"});
}

void write_tokenizer_settings(const data::TextTokenizer& tokenizer, const Ends& ends,
                              const std::optional<data::ChatTemplate>& chat, std::vector<SmallFile>& files) {
  if (!find(files, "tokenizer.json") && !chat) return;
  const bool has_one = find(files, "tokenizer_config.json") != nullptr;
  ordered_json j = parsed_or_empty(files, "tokenizer_config.json");
  const ordered_json before = j;
  if (!has_one && find(files, "tokenizer.json")) j["tokenizer_class"] = "PreTrainedTokenizerFast";
  if (ends.document) {
    const std::string spelled = spelling_of(tokenizer, *ends.document);
    const ordered_json said = j.value("eos_token", ordered_json());
    const bool same = said.is_object() ? said.value("content", ordered_json()) == spelled : said == spelled;
    if (!spelled.empty() && !same) j["eos_token"] = spelled;
  }
  // The tokenizer's own template is among its files.
  if (chat && chat->name != data::kTokenizersOwn) {
    const std::string text = jinja_template(*chat);
    std::erase_if(files, [](const SmallFile& f) { return f.name == "chat_template.json"; });
    put(files, {"chat_template.jinja", text});
    // For readers that know no file of its own.
    j["chat_template"] = text;
  }
  if (j != before) put(files, {"tokenizer_config.json", j.dump(2) + "\n"});
}

// "byte" is also what a run has when nobody named a tokenizer.
bool is_byte_model(const config::Config& c) {
  if (c.model.vocab_size < data::ByteTokenizer::kVocabSize) return false;
  const std::vector<data::DatasetInfo> all = train::described_datasets(c.data);
  if (all.empty()) return c.model.vocab_size == data::ByteTokenizer::kVocabSize;
  return std::all_of(all.begin(), all.end(),
                     [](const data::DatasetInfo& info) { return info.tokenizer_kind == "byte"; });
}

}  // namespace

std::vector<std::string> complete_companion_files(const CompanionRequest& request,
                                                  std::vector<SmallFile>& files, ordered_json& config_json) {
  const config::Config& c = request.trained;
  const bool is_byte = request.tokenizer == "byte";
  if (request.tokenizer.empty() && request.keeps_source_ids) return {};
  if (request.tokenizer.empty() || (is_byte && !is_byte_model(c)))
    return {
        "no tokenizer and no ids that begin and end a text are written: the run does not say what its data "
        "was "
        "tokenized with (data.tokenizer)"};
  std::unique_ptr<data::TextTokenizer> tokenizer;
  try {
    tokenizer = data::open_tokenizer(request.tokenizer, {.end_of_document = c.data.end_of_document});
  } catch (const base::Error& e) {
    if (request.keeps_source_ids && !train::run_chat_template(c)) return {};
    return {fmt::format("the ids that begin and end a text are not known: {}", e.what())};
  }
  if (is_byte)
    for (SmallFile& file : byte_tokenizer_files(c.train.seq_len)) put(files, std::move(file));
  const std::optional<data::ChatTemplate> chat = train::run_chat_template(c);
  const Ends ends = ends_of(*tokenizer, chat);
  if (!request.keeps_source_ids) {
    config_json["bos_token_id"] = ends.begin ? ordered_json(*ends.begin) : ordered_json(nullptr);
    config_json["eos_token_id"] = ends.document ? ordered_json(*ends.document) : ordered_json(nullptr);
  }
  write_generation_config(ends, request.keeps_source_ids, config_json, files);
  if (!request.keeps_source_ids || chat) write_tokenizer_settings(*tokenizer, ends, chat, files);
  if (!ends.document && !ends.turn)
    return {"nothing ends a text: the tokenizer names no end token; set data.end_of_document"};
  return {};
}

}  // namespace pleat::exchange
