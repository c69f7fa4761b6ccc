// document_from_json: one line of JSONL to one document. Event-driven, so that a hostile line builds no tree:
// only the wanted string is kept, and the nesting depth is capped before it costs anything.
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "data/json_error.h"
#include "data/text_source.h"

namespace pleat::data {
namespace {

using Json = nlohmann::json;

// Returning false from an event stops the parser; errors are thrown here directly, with the place.
class DocumentEvents final : public nlohmann::json_sax<Json> {
 public:
  DocumentEvents(std::string_view key, std::string_view where) : key_(key), where_(where) {}

  bool null() override { return other("null"); }
  bool boolean(bool) override { return other("a boolean"); }
  bool number_integer(number_integer_t) override { return other("a number"); }
  bool number_unsigned(number_unsigned_t) override { return other("a number"); }
  bool number_float(number_float_t, const string_t&) override { return other("a number"); }
  bool binary(binary_t&) override { return other("binary data"); }

  bool string(string_t& value) override {
    if (!wanted_) return other("a string");
    text_ = std::move(value);
    found_ = true;
    wanted_ = false;
    return true;
  }
  bool start_object(std::size_t) override {
    if (depth_ > 0) other("an object");
    return enter();
  }
  bool start_array(std::size_t) override {
    other("an array");
    return enter();
  }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }

  bool key(string_t& name) override {
    if (depth_ != 1) return true;
    if (conversation_.empty() &&
        (name == "messages" || name == "conversations" || name == "instruction" || name == "prompt"))
      conversation_ = name;
    if (name != key_) return true;
    if (found_) base::fail("{}: key \"{}\" appears twice", where_, printable_json(key_));
    wanted_ = true;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    fail_broken_json(where_, position, error.what());
  }

  std::string take() {
    if (!found_ && !conversation_.empty())
      base::fail(
          "{}: the object has no key \"{}\" but \"{}\", as a conversation has. To train on it, set "
          "chat.template; for eval, make a dataset of it with `pleat data tokenize --chat TEMPLATE`",
          where_, printable_json(key_), conversation_);
    if (!found_) base::fail("{}: the object has no key \"{}\"", where_, printable_json(key_));
    return std::move(text_);
  }

 private:
  // A value that is not the wanted string.
  bool other(const char* kind) {
    if (depth_ == 0) base::fail("{}: the line is {}; a JSON object is needed", where_, kind);
    if (wanted_)
      base::fail("{}: key \"{}\" holds {}; a string is needed", where_, printable_json(key_), kind);
    return true;
  }
  bool enter() {
    if (++depth_ > kMaxJsonDepth) base::fail("{}: JSON nests deeper than {} levels", where_, kMaxJsonDepth);
    return true;
  }
  bool leave() {
    --depth_;
    return true;
  }

  std::string_view key_;
  std::string_view where_;
  std::string text_;
  std::string conversation_;  // a member that tells one (chat/chat_line.h)
  int depth_ = 0;
  bool wanted_ = false;
  bool found_ = false;
};

}  // namespace

std::string document_from_json(std::string_view line, std::string_view key, std::string_view where) {
  DocumentEvents events(key, where);
  Json::sax_parse(line.begin(), line.end(), &events);
  return events.take();
}

}  // namespace pleat::data
