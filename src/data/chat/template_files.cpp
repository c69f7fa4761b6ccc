#include "data/chat/template_files.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/hash.h"
#include "data/mapped_file.h"
#include "data/tokenizer/json_fields.h"

namespace pleat::data {
namespace {

namespace files = std::filesystem;

constexpr size_t kMaxSettingsBytes = size_t{64} << 20;
constexpr size_t kMaxTemplates = 64;
constexpr const char* kTokenNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};

bool is_there(const files::path& path) {
  std::error_code ignored;
  return files::is_regular_file(path, ignored);
}

std::string settings_text(const files::path& path) {
  const MappedFile file(path.string());
  const auto bytes = file.bytes();
  if (bytes.size() > kMaxSettingsBytes)
    base::fail("{}: {} bytes; at most {} are supported", path.string(), bytes.size(), kMaxSettingsBytes);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void read_jinja_files(const files::path& folder, FolderTemplates& out) {
  const files::path single = folder / "chat_template.jinja";
  if (is_there(single)) out.templates.push_back({"default", settings_text(single), single.string()});
  std::error_code error;
  std::vector<files::path> more;
  for (files::directory_iterator at(folder / "additional_chat_templates", error), end; !error && at != end;
       at.increment(error))
    if (at->path().extension() == ".jinja" && is_there(at->path())) more.push_back(at->path());
  if (more.size() > kMaxTemplates)
    base::fail("{}: {} templates; at most {} are supported", (folder / "additional_chat_templates").string(),
               more.size(), kMaxTemplates);
  std::sort(more.begin(), more.end());
  for (const files::path& path : more)
    out.templates.push_back({path.stem().string(), settings_text(path), path.string()});
}

// "chat_template" of a settings file: a string, or a list of {"name", "template"}.
void read_member(const Json& json, const std::string& path, FolderTemplates& out) {
  const Json* found = find(json, "chat_template");
  if (found == nullptr) return;
  const std::string where = path + ": chat_template";
  if (found->is_string()) {
    out.templates.push_back({"default", found->get<std::string>(), where});
    return;
  }
  if (!found->is_array()) base::fail("{}: a string or a list of named templates is needed", where);
  if (found->size() > kMaxTemplates)
    base::fail("{}: {} templates; at most {} are supported", where, found->size(), kMaxTemplates);
  for (const Json& item : *found) {
    const std::string name = string_at(item, "name", where);
    out.templates.push_back({name, string_at(item, "template", where), where + " " + name});
  }
}

void read_tokens(const Json& json, const std::string& path, FolderTemplates& out) {
  for (const char* name : kTokenNames) {
    const Json* token = find(json, name);
    if (token == nullptr) continue;
    std::string spelling =
        token->is_string() ? token->get<std::string>() : string_at(*token, "content", path + ": " + name);
    const auto known = std::find_if(out.special_tokens.begin(), out.special_tokens.end(),
                                    [&](const auto& t) { return t.first == name; });
    if (known != out.special_tokens.end())
      known->second = std::move(spelling);
    else
      out.special_tokens.emplace_back(name, std::move(spelling));
  }
}

}  // namespace

const NamedTemplate* FolderTemplates::find(const std::string& name) const {
  for (const NamedTemplate& t : templates)
    if (t.name == name) return &t;
  return nullptr;
}

std::string FolderTemplates::hash() const {
  std::string all;
  const auto add = [&](std::string_view text) { all += fmt::format("{}:{};", text.size(), text); };
  for (const NamedTemplate& t : templates) {
    add(t.name);
    add(t.source);
  }
  for (const auto& [name, token] : special_tokens) {
    add(name);
    add(token);
  }
  return base::to_hex(base::sha256(all));
}

FolderTemplates read_folder_templates(const std::string& tokenizer) {
  const files::path folder = files::path(tokenizer).parent_path();
  FolderTemplates out;
  read_jinja_files(folder, out);
  const files::path config = folder / "tokenizer_config.json";
  const files::path map = folder / "special_tokens_map.json";
  bool lists_added_tokens = false;
  if (is_there(config)) {
    const Json json = parse_json(settings_text(config), config.string());
    if (out.templates.empty()) read_member(json, config.string(), out);
    read_tokens(json, config.string(), out);
    lists_added_tokens = data::find(json, "added_tokens_decoder") != nullptr;
  }
  // Newer folders say everything in the first file; the second is then left alone.
  if (!lists_added_tokens && is_there(map))
    read_tokens(parse_json(settings_text(map), map.string()), map.string(), out);
  const files::path older = folder / "chat_template.json";
  if (out.templates.empty() && is_there(older))
    read_member(parse_json(settings_text(older), older.string()), older.string(), out);
  if (out.templates.empty())
    base::fail(
        "{}: no chat template beside the tokenizer: chat_template.jinja, or \"chat_template\" in "
        "tokenizer_config.json or chat_template.json, is needed; chat.template (--chat) chatml, llama3, "
        "plain "
        "and custom need none",
        folder.string());
  return out;
}

}  // namespace pleat::data
