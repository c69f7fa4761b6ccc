// Text that knows where each of its characters came from.
//
// A rendered conversation mixes what the template writes with what people wrote, and the assistant's turns
// with all others. Every operation on text keeps the marks, so that this can be told from the rendering
// itself, whatever the template did in between.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pleat::data {

struct TextMark {
  static constexpr int32_t kTemplate = -1;  // written by the template
  static constexpr int32_t kOther = -2;     // from data outside the messages: tools, further variables
  static constexpr int32_t kNoTurn = -1;

  int32_t source = kTemplate;  // or the message it is copied from
  int32_t turn = kNoTurn;      // the message whose round of a loop wrote it
  bool generated = false;      // inside {% generation %}

  bool operator==(const TextMark&) const = default;
};

class TracedText {
 public:
  TracedText() = default;
  explicit TracedText(std::string bytes, TextMark mark = {});

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  // Bytes of memory this takes, about.
  size_t memory() const { return bytes_.size() + runs_.size() * sizeof(Run); }

  void append(const TracedText& other);
  void append(std::string_view bytes, TextMark mark = {});
  TracedText slice(size_t begin, size_t end) const;

  // visit(begin, end, mark) over the whole text in order; neighbours differ in their marks.
  template <class Visit>
  void for_each_run(const Visit& visit) const {
    size_t begin = 0;
    if (runs_.empty() && !bytes_.empty()) visit(begin, bytes_.size(), TextMark{});
    for (const Run& run : runs_) {
      visit(begin, run.end, run.mark);
      begin = run.end;
    }
  }

  // The same bytes, each run with change(mark).
  template <class Change>
  TracedText remarked(const Change& change) const {
    TracedText out;
    for_each_run([&](size_t begin, size_t end, TextMark mark) {
      out.append(std::string_view(bytes_).substr(begin, end - begin), change(mark));
    });
    return out;
  }

  // Each run's bytes through convert(bytes), which may change their number.
  template <class Convert>
  TracedText converted(const Convert& convert) const {
    TracedText out;
    for_each_run([&](size_t begin, size_t end, TextMark mark) {
      out.append(convert(std::string_view(bytes_).substr(begin, end - begin)), mark);
    });
    return out;
  }

 private:
  struct Run {
    size_t end = 0;
    TextMark mark = {};
  };
  std::string bytes_;
  std::vector<Run> runs_;  // none: all of it unmarked
};

}  // namespace pleat::data
