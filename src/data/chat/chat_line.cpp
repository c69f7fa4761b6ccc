// Event-driven like json_document.cpp, so that a hostile line builds no tree.
#include "data/chat/chat_line.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/json_error.h"
#include "data/text_source.h"

namespace pleat::data {
namespace {

using Json = nlohmann::json;

class ChatEvents final : public nlohmann::json_sax<Json> {
 public:
  explicit ChatEvents(std::string_view where) : where_(where) {}

  bool null() override { return other("null"); }
  bool boolean(bool) override { return other("a boolean"); }
  bool number_integer(number_integer_t) override { return other("a number"); }
  bool number_float(number_float_t, const string_t&) override { return other("a number"); }
  bool binary(binary_t&) override { return other("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (!in_message() || key_ != "weight") return other("a number");
    if (value > 1) fail(fmt::format("\"weight\" is {}; needed is 0 or 1", value));
    messages_.back().counts = value == 1;
    return true;
  }

  bool string(string_t& value) override {
    if (!in_message() || key_ == "weight") return other("a string");
    (key_ == "role" ? messages_.back().role : messages_.back().content) = std::move(value);
    return true;
  }

  bool start_object(std::size_t) override {
    if (at_message()) {
      messages_.emplace_back();
      has_role_ = has_content_ = has_weight_ = false;
    } else if (depth_ > 0) {
      other("an object");
    }
    return enter();
  }

  bool start_array(std::size_t) override {
    if (depth_ == 1 && key_ == "messages")
      inside_messages_ = true;
    else
      other("an array");
    return enter();
  }

  bool end_object() override {
    if (in_message()) {
      if (!has_role_) fail("\"role\" is missing");
      if (!has_content_) fail("\"content\" is missing");
      if (messages_.back().role.empty()) fail("\"role\" is empty");
    }
    --depth_;
    return true;
  }

  bool end_array() override {
    if (--depth_ == 1) inside_messages_ = false;
    return true;
  }

  bool key(string_t& name) override {
    if (depth_ == 1) {
      if (name == "tools" || name == "functions")
        base::fail("{}: \"{}\" belongs to the prompt and is not supported", where_, name);
      if (name == "messages" && has_messages_) base::fail("{}: \"messages\" appears twice", where_);
      has_messages_ |= name == "messages";
      key_ = name;
    } else if (in_message()) {
      bool* seen = name == "role"      ? &has_role_
                   : name == "content" ? &has_content_
                   : name == "weight"  ? &has_weight_
                                       : nullptr;
      if (seen == nullptr)
        fail(
            fmt::format("\"{}\" is not supported; a message has \"role\", \"content\" and perhaps \"weight\"",
                        printable_json(name, 40)));
      if (*seen) fail(fmt::format("\"{}\" appears twice", name));
      *seen = true;
      key_ = name;
    }
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    fail_broken_json(where_, position, error.what());
  }

  std::vector<ChatMessage> take() {
    if (!has_messages_) base::fail("{}: the object has no \"messages\"", where_);
    if (messages_.empty()) base::fail("{}: \"messages\" is empty; at least one is needed", where_);
    return std::move(messages_);
  }

 private:
  // Between the members of the list, and between the members of one of its objects.
  bool at_message() const { return inside_messages_ && depth_ == 2; }
  bool in_message() const { return inside_messages_ && depth_ == 3; }

  [[noreturn]] void fail(std::string_view what) const {
    base::fail("{}: message {}: {}", where_, messages_.size(), what);
  }

  // A value that is not what its place needs; members nobody reads may hold anything.
  bool other(const char* kind) {
    if (depth_ == 0) base::fail("{}: the line is {}; a JSON object is needed", where_, kind);
    if (depth_ == 1 && key_ == "messages")
      base::fail("{}: \"messages\" holds {}; a list of messages is needed", where_, kind);
    if (at_message())
      base::fail("{}: message {} is {}; an object with \"role\" and \"content\" is needed", where_,
                 messages_.size() + 1, kind);
    if (in_message())
      fail(
          fmt::format("\"{}\" holds {}; {} is needed", key_, kind, key_ == "weight" ? "0 or 1" : "a string"));
    return true;
  }

  bool enter() {
    if (++depth_ > kMaxJsonDepth) base::fail("{}: JSON nests deeper than {} levels", where_, kMaxJsonDepth);
    return true;
  }

  std::string_view where_;
  std::vector<ChatMessage> messages_;
  std::string key_;
  int depth_ = 0;
  bool inside_messages_ = false, has_messages_ = false;
  bool has_role_ = false, has_content_ = false, has_weight_ = false;
};

}  // namespace

std::vector<ChatMessage> chat_from_json(std::string_view line, std::string_view where) {
  ChatEvents events(where);
  Json::sax_parse(line.begin(), line.end(), &events);
  return events.take();
}

}  // namespace pleat::data
