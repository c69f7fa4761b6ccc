#include "config/run_files.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/hash.h"
#include "base/posix_vfs.h"
#include "base/replace_file.h"
#include "config/quote.h"
#include "config/schema.h"

namespace pleat::config {

namespace {

namespace fs = std::filesystem;

constexpr char kEndLine[] = "# end\n";
constexpr char kAskedHead[] =
    "# What this run was asked to do. `pleat train` of this folder goes on with it; --set changes it.\n"
    "# Relative names lie in this folder.\n";

std::string absolute(const std::string& path) {
  std::string out = fs::absolute(path).lexically_normal().string();
  while (out.size() > 1 && out.ends_with('/')) out.pop_back();
  return out;
}

std::string joined(const std::string& folder, const std::string& name) {
  if (fs::path(name).is_absolute()) return name;
  if (name == ".") return folder;
  return folder.ends_with('/') ? folder + name : folder + "/" + name;
}

std::string named_in(const std::string& folder, const std::string& path) {
  const std::string whole = absolute(path);
  const std::string inside = fs::path(whole).lexically_relative(absolute(folder)).string();
  return inside.empty() || inside == ".." || inside.starts_with("../") ? whole : inside;
}

// Calls `change` on every name of a file or folder. data.tokenizer may be "byte", which is none, and may have
// a family in front.
template <class Function>
void for_each_path(Config& config, const Function& change) {
  const auto changed = [&](const Key& key, const std::string& value) {
    if (value.empty()) return value;
    if (key.path != "data.tokenizer") return change(value);
    if (value == "byte") return value;
    const size_t colon = value.find(':');
    const bool family = colon != std::string::npos && value.find('/') > colon;
    const size_t start = family ? colon + 1 : 0;
    return value.substr(0, start) + change(value.substr(start));
  };
  for (const Key& key : schema()) {
    if (!key.is_path) continue;
    Value value = key.get(config);
    if (auto* text = std::get_if<std::string>(&value)) *text = changed(key, *text);
    if (auto* list = std::get_if<std::vector<std::string>>(&value))
      for (std::string& text : *list) text = changed(key, text);
    if (const auto asked = config.asked.find(key.path); asked != config.asked.end())
      asked->second = to_text(value);
    key.set(config, std::move(value));
  }
}

std::string digest_line(std::string_view asked_toml) {
  return "# Belongs to the asked.toml of sha256 " + base::to_hex(base::sha256(asked_toml)) + ".";
}

bool has_file(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

}  // namespace

std::string run_folder_of(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    if (has_file(fs::path(path) / kAskedName)) return path.empty() ? "." : path;
    if (has_file(fs::path(path) / kRecordName))
      base::fail(
          "{} has a config.toml but no asked.toml: it is no run folder of this version (0.1.0 wrote none); "
          "name the configuration file it was started with",
          quote(path));
    base::fail(
        "{} is a folder, but no run folder: it has no asked.toml (a run writes it when it has begun); needed "
        "is "
        "a configuration file or a run folder",
        quote(path));
  }
  const fs::path file(path);
  if (file.filename() != kRecordName && file.filename() != kAskedName) return "";
  const std::string folder = file.parent_path().empty() ? "." : file.parent_path().string();
  return has_file(fs::path(folder) / kAskedName) ? folder : "";
}

Config from_folder(Config config, const std::string& folder) {
  for_each_path(config, [&](const std::string& name) { return joined(folder, name); });
  config.log.run_dir = folder;
  return config;
}

Config in_folder(Config config, const std::string& folder) {
  for_each_path(config, [&](const std::string& name) { return named_in(folder, name); });
  return config;
}

Config placed(Config saved, const std::string& folder) {
  if (saved.log.run_dir == ".") return from_folder(std::move(saved), folder);
  const std::string former = joined(saved.log.run_dir, "checkpoints");
  if (saved.checkpoint.dir.empty() || saved.checkpoint.dir == former)
    saved.checkpoint.dir = joined(folder, "checkpoints");
  if (saved.data.tokenizer == joined(saved.log.run_dir, "source"))
    saved.data.tokenizer = joined(folder, "source");
  saved.log.run_dir = folder;
  return saved;
}

std::string asked_text(const Config& asked) {
  const Config local = in_folder(asked, asked.log.run_dir);
  std::string out = kAskedHead, open_section;
  for (const Key& key : schema()) {
    const bool is_folder = key.path == "log.run_dir";
    if (!is_folder && (!local.asked.contains(key.path) || !key.present(local))) continue;
    const size_t dot = key.path.rfind('.');
    if (const std::string section = key.path.substr(0, dot); section != open_section) {
      out += fmt::format("\n[{}]\n", section);
      open_section = section;
    }
    out += fmt::format("{} = {}\n", key.path.substr(dot + 1), to_text(key.get(local)));
  }
  return out + kEndLine;
}

std::string record_text(const Config& prepared, const Config& used, std::string_view asked_toml) {
  const std::string& folder = used.log.run_dir;
  std::string out = fmt::format(
      "{} What was used, everything filled in. Changing this file changes nothing:\n# what was asked is in "
      "asked.toml. Relative names lie in this folder.\n{}\n\n{}\n# asked / used / why\n",
      kRecordHead, digest_line(asked_toml), to_toml(in_folder(used, folder)));
  for (const ResolvedRow& row : resolved(in_folder(prepared, folder)))
    out += fmt::format("# {} = {} (asked: {}){}{}\n", row.key, row.used, row.asked,
                       row.why.empty() ? "" : ", ", row.why);
  return out + kEndLine;
}

void write_run_files(const Config& asked, const Config& prepared, const Config& used) {
  const std::string& folder = used.log.run_dir;
  const std::string text = asked_text(asked);
  const std::string next = joined(folder, kNextRecordName);
  base::replace_file(next, record_text(prepared, used, text));
  base::replace_file(joined(folder, kAskedName), text);
  base::PosixVfs vfs;
  vfs.rename(next, joined(folder, kRecordName));
  vfs.fsync_dir(folder);
}

bool next_record_counts(std::string_view next_record, std::string_view asked_toml) {
  return next_record.ends_with(kEndLine) &&
         next_record.find("\n" + digest_line(asked_toml) + "\n") != std::string_view::npos;
}

void require_whole(std::string_view text, const std::string& path) {
  if (text.ends_with(kEndLine)) return;
  base::fail_with(base::ExitCode::Storage,
                  "{} is not whole: it has {} bytes and its last line is not \"# end\"; it was cut short, or "
                  "edited without that line",
                  quote(path), text.size());
}

}  // namespace pleat::config
