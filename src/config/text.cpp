// Canonical text of a Config, and what is built on it.
#include "base/hash.h"
#include "config/quote.h"
#include "config/schema.h"

namespace pleat::config {

namespace {

// Keys without effect stay out, or the text would not parse back; a value left in one all the same is shown
// so that parsing refuses it instead of losing it.
bool written(const Key& key, const Config& config) {
  if (!key.present(config)) return false;
  return key.unmet(config) == nullptr || key.get(config) != key.default_value();
}

std::string shown(const Key& key, const Config& config) {
  return key.present(config) ? to_text(key.get(config)) : "unset";
}

}  // namespace

std::string to_toml(const Config& config) {
  std::string out, open_section;
  for (const Key& key : schema()) {
    if (!written(key, config)) continue;
    const size_t dot = key.path.rfind('.');
    const std::string section = key.path.substr(0, dot);
    if (section != open_section) {
      out += (out.empty() ? "[" : "\n[") + section + "]\n";
      open_section = section;
    }
    out += key.path.substr(dot + 1) + " = " + to_text(key.get(config)) + "\n";
  }
  return out;
}

std::string digest(const Config& config) { return base::to_hex(base::sha256(to_toml(config))); }

std::string Change::text() const { return key->path + ": " + before + " -> " + after; }

std::vector<Change> changes(const Config& before, const Config& after) {
  std::vector<Change> out;
  for (const Key& key : schema()) {
    std::string left = shown(key, before), right = shown(key, after);
    if (left != right) out.push_back({&key, std::move(left), std::move(right)});
  }
  return out;
}

std::vector<std::string> differences(const Config& a, const Config& b) {
  std::vector<std::string> out;
  for (const Change& change : changes(a, b)) out.push_back(change.text());
  return out;
}

}  // namespace pleat::config
