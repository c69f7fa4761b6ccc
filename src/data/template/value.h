// A value of the template language: what JSON can say. Members of a map keep the order they were given in,
// because templates write them out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace pleat::data {

class TemplateValue {
 public:
  using List = std::vector<TemplateValue>;
  using Member = std::pair<std::string, TemplateValue>;
  using Map = std::vector<Member>;

  TemplateValue() = default;  // none
  TemplateValue(bool value) : value_(value) {}
  TemplateValue(int64_t value) : value_(value) {}
  TemplateValue(int value) : value_(int64_t{value}) {}
  TemplateValue(double value) : value_(value) {}
  TemplateValue(std::string value) : value_(std::move(value)) {}
  TemplateValue(std::string_view value) : value_(std::string(value)) {}
  TemplateValue(const char* value) : value_(std::string(value)) {}
  TemplateValue(List value) : value_(std::move(value)) {}
  TemplateValue(Map value) : value_(std::move(value)) {}

  bool is_none() const { return std::holds_alternative<std::monostate>(value_); }
  const bool* boolean() const { return std::get_if<bool>(&value_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&value_); }
  const double* real() const { return std::get_if<double>(&value_); }
  const std::string* text() const { return std::get_if<std::string>(&value_); }
  const List* list() const { return std::get_if<List>(&value_); }
  const Map* map() const { return std::get_if<Map>(&value_); }
  List* list() { return std::get_if<List>(&value_); }
  Map* map() { return std::get_if<Map>(&value_); }

  // The member of that name; nothing when there is none, or when this is no map.
  const TemplateValue* member(std::string_view name) const {
    if (const Map* m = map())
      for (const Member& one : *m)
        if (one.first == name) return &one.second;
    return nullptr;
  }

  bool operator==(const TemplateValue&) const = default;

 private:
  std::variant<std::monostate, bool, int64_t, double, std::string, List, Map> value_;
};

}  // namespace pleat::data
