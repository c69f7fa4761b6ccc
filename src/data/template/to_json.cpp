// json.dumps.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "data/template/evaluator.h"
#include "data/template/python_text.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(Evaluator& e, CallArguments& arguments) : e_(e) {
    const Value* ascii = arguments.get(0, "ensure_ascii");
    const Value* indent = arguments.get(1, "indent");
    const Value* separators = arguments.get(2, "separators");
    const Value* sort = arguments.get(3, "sort_keys");
    ascii_ = ascii != nullptr && truth(*ascii);
    sort_ = sort != nullptr && truth(*sort);
    if (indent != nullptr && !indent->is_none()) {
      pretty_ = true;
      between_ = ",";
      if (indent->text() != nullptr)
        indent_ = indent->text()->bytes();
      else
        indent_.assign(static_cast<size_t>(std::clamp<int64_t>(e.integer(*indent, "indent"), 0, 1000)), ' ');
    }
    if (separators != nullptr && !separators->is_none()) {
      const std::vector<Value> two = e.items_of(*separators);
      if (two.size() != 2) e.fail("tojson: separators are two strings");
      between_ = e.text(two[0], "separators").bytes();
      colon_ = e.text(two[1], "separators").bytes();
    }
  }

  void write(const Value& value) {
    e_.charge(1);
    e_.charge_copy(between_.size() + colon_.size());
    e_.check_room(out_);
    if (const Dict* dict = value.dict()) return write_dict(*dict);
    if (const List* list = value.list();
        list != nullptr && (list->kind == ListKind::List || list->kind == ListKind::Tuple)) {
      if (list->items.empty()) return out_.append("[]");
      out_.append("[");
      ++level_;
      for (size_t i = 0; i < list->items.size(); ++i) {
        next(i == 0);
        write(list->items[i]);
      }
      --level_;
      end("]");
      return;
    }
    if (const TracedText* text = value.text()) return write_text(*text);
    if (value.is_undefined() || !scalar(value))
      e_.fail(fmt::format("tojson: a {} has no JSON", type_name(value)));
  }

  TracedText take() { return std::move(out_); }

 private:
  void line() {
    out_.append("\n");
    for (int i = 0; i < level_; ++i) {
      e_.charge_copy(indent_.size());
      out_.append(indent_);
      e_.check_room(out_);
    }
  }
  void next(bool first) {
    if (!first) out_.append(between_);
    if (pretty_) line();
  }
  void end(std::string_view closing) {
    if (pretty_) line();
    out_.append(closing);
  }

  bool scalar(const Value& value) {
    if (value.is_none()) return out_.append("null"), true;
    if (const bool* b = value.boolean()) return out_.append(*b ? "true" : "false"), true;
    if (const int64_t* i = value.integer()) return out_.append(std::to_string(*i)), true;
    const double* d = value.real();
    if (d == nullptr) return false;
    if (std::isnan(*d))
      out_.append("NaN");
    else if (std::isinf(*d))
      out_.append(*d < 0 ? "-Infinity" : "Infinity");
    else
      out_.append(repr(*d));
    return true;
  }

  void write_text(const TracedText& text) {
    out_.append("\"");
    e_.append_converted(out_, text, [&](std::string_view piece) { return escaped(piece); });
    out_.append("\"");
  }

  std::string escaped(std::string_view text) const {
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      const uint32_t c = next_code_point(text, at);
      static constexpr std::string_view kFrom = "\"\\\n\r\t\f\b", kTo = "\"\\nrtfb";
      if (const size_t known = c < 0x80 ? kFrom.find(static_cast<char>(c)) : std::string_view::npos;
          known != std::string_view::npos)
        (out += '\\') += kTo[known];
      else if (c < 0x20 || (ascii_ && c >= 0x7f && c < 0x10000 && c != 0x7f))
        out += fmt::format("\\u{:04x}", c);
      else if (ascii_ && c >= 0x10000)
        out += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + ((c - 0x10000) >> 10),
                           0xdc00 + ((c - 0x10000) & 0x3ff));
      else
        out += text.substr(begin, at - begin);
    }
    return out;
  }

  void write_dict(const Dict& dict) {
    if (dict.items.empty()) return out_.append("{}");
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (sort_)
      std::stable_sort(items.begin(), items.end(),
                       [&](const auto* a, const auto* b) { return e_.less(a->first, b->first); });
    out_.append("{");
    ++level_;
    for (size_t i = 0; i < items.size(); ++i) {
      next(i == 0);
      if (const TracedText* key = items[i]->first.text()) {
        write_text(*key);
      } else {
        out_.append("\"");
        if (!scalar(items[i]->first))
          e_.fail(fmt::format("tojson: a {} cannot be a key", type_name(items[i]->first)));
        out_.append("\"");
      }
      out_.append(colon_);
      write(items[i]->second);
    }
    --level_;
    end("}");
  }

  Evaluator& e_;
  TracedText out_;
  std::string indent_, between_ = ", ", colon_ = ": ";
  bool ascii_ = false, sort_ = false, pretty_ = false;
  int level_ = 0;
};

}  // namespace

Value to_json(Evaluator& e, const Value& value, CallArguments& arguments) {
  JsonWriter writer(e, arguments);
  writer.write(value);
  return e.make(writer.take());
}

}  // namespace pleat::data::jinja
