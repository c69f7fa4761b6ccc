// `pleat explain-config KEY`: the schema read aloud.
#include <fmt/ranges.h>

#include "base/error.h"
#include "config/quote.h"
#include "config/schema.h"

namespace pleat::config {

namespace {

std::string wrapped(std::string_view text, size_t width = 96) {
  std::string out;
  size_t column = 0;
  while (!text.empty()) {
    const size_t space = text.find(' ');
    const std::string_view word = text.substr(0, space);
    if (column > 0 && column + 1 + word.size() > width) {
      out += '\n';
      column = 0;
    } else if (column > 0) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
  }
  return out;
}

std::string explain_key(const Key& key) {
  std::string out = fmt::format("{}\n\n{}\n\n", key.path, wrapped(key.meaning));
  out += fmt::format("  type      {}\n", key.type_name());
  const bool unset = !key.present(Config{});
  out += fmt::format("  default   {}\n",
                     unset && key.path.ends_with("weight_decay") ? "unset" : to_text(key.default_value()));
  if (const std::string allowed = key.allowed(); !allowed.empty())
    out += fmt::format("  allowed   {}\n", allowed);
  const std::string applies = key.applies_when();
  out += fmt::format("  applies   {}{}\n", applies.empty() ? "always" : "when ", applies);
  out += fmt::format("  resume    {}\n", text_of(*key.resume));
  if (!key.related.empty()) out += fmt::format("  related   {}\n", fmt::join(key.related, ", "));
  return out;
}

std::string first_sentence(const std::string& text) {
  const size_t end = text.find(". ");
  return end == std::string::npos ? text : text.substr(0, end + 1);
}

std::string explain_section(std::string_view section) {
  std::string out = fmt::format("[{}]\n\n", section);
  const std::string prefix = std::string(section) + ".";
  for (const Key& key : schema())
    if (key.path.starts_with(prefix))
      out += fmt::format("  {:<40} {:<12} {}\n", key.path,
                         key.present(Config{}) ? to_text(key.default_value()) : "unset",
                         first_sentence(key.meaning));
  return out + "\nOne key in full: pleat explain-config KEY\n";
}

std::string explain_all() {
  std::string out = "Sections:\n\n", last;
  for (const Key& key : schema()) {
    const std::string section = key.path.substr(0, key.path.find('.'));
    if (section != last) out += "  " + section + "\n";
    last = section;
  }
  return out + "\nThe keys of one: pleat explain-config SECTION\n";
}

}  // namespace

std::string explain(std::string_view key) {
  if (key.empty()) return explain_all();
  if (const Key* found = find_key(key)) return explain_key(*found);
  if (is_section(key)) return explain_section(key);
  base::fail("there is no configuration key {}; the nearest is \"{}\"", quote(key), nearest_key(key));
}

}  // namespace pleat::config
