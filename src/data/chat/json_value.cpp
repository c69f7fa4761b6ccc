#include "data/chat/json_value.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "data/json_error.h"
#include "data/text_source.h"

namespace pleat::data {
namespace {

using Json = nlohmann::json;

class ValueEvents final : public nlohmann::json_sax<Json> {
 public:
  ValueEvents(std::string_view where, std::span<const std::string_view> keep) : where_(where), keep_(keep) {}

  bool null() override { return add({}); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(int64_t{value}); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<uint64_t>(INT64_MAX)) return add(static_cast<double>(value));
    return add(static_cast<int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return add({}); }

  bool start_object(std::size_t) override { return open(TemplateValue::Map{}); }
  bool start_array(std::size_t) override { return open(TemplateValue::List{}); }
  bool end_array() override { return close(); }
  bool end_object() override {
    if (!skips()) check_names(*open_.back()->map());
    return close();
  }

  bool key(string_t& name) override {
    if (skips()) return true;
    if (depth_ == 1 && !keep_.empty() && std::find(keep_.begin(), keep_.end(), name) == keep_.end())
      skip_from_ = 1;  // until its value ends
    else
      key_ = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    fail_broken_json(where_, position, error.what());
  }

  TemplateValue take() { return std::move(root_); }

 private:
  bool skips() const { return skip_from_ > 0; }

  TemplateValue* place(TemplateValue value) {
    if (++num_values_ > kMaxJsonValues)
      base::fail("{}: JSON with more than {} values; a line may hold that many", where_, kMaxJsonValues);
    if (open_.empty()) return &(root_ = std::move(value));
    if (TemplateValue::List* list = open_.back()->list()) return &list->emplace_back(std::move(value));
    return &open_.back()->map()->emplace_back(std::move(key_), std::move(value)).second;
  }

  bool add(TemplateValue value) {
    if (!skips())
      place(std::move(value));
    else if (depth_ == 1)
      skip_from_ = 0;
    return true;
  }

  bool open(TemplateValue value) {
    if (++depth_ > kMaxJsonDepth) base::fail("{}: JSON nests deeper than {} levels", where_, kMaxJsonDepth);
    if (!skips()) open_.push_back(place(std::move(value)));
    return true;
  }

  bool close() {
    if (!skips()) open_.pop_back();
    if (--depth_ == 1) skip_from_ = 0;
    return true;
  }

  void check_names(const TemplateValue::Map& members) const {
    std::vector<std::string_view> names;
    names.reserve(members.size());
    for (const TemplateValue::Member& member : members) names.push_back(member.first);
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice != names.end()) base::fail("{}: \"{}\" appears twice", where_, printable_json(*twice, 40));
  }

  std::string_view where_;
  std::span<const std::string_view> keep_;
  TemplateValue root_;
  // Containers that are not closed yet. A pointer stays good: nothing is added beside a child that is open.
  std::vector<TemplateValue*> open_;
  std::string key_;
  int depth_ = 0, skip_from_ = 0;
  int64_t num_values_ = 0;
};

}  // namespace

TemplateValue value_from_json(std::string_view text, std::string_view where,
                              std::span<const std::string_view> keep) {
  ValueEvents events(where, keep);
  Json::sax_parse(text.begin(), text.end(), &events);
  return events.take();
}

const char* kind_of(const TemplateValue& value) {
  if (value.is_none()) return "null";
  if (value.boolean()) return "a boolean";
  if (value.text()) return "a string";
  if (value.list()) return "an array";
  if (value.map()) return "an object";
  return "a number";
}

}  // namespace pleat::data
