#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "base/error.h"
#include "interpret/print/print.h"
#include "program/value_name.h"

namespace pleat::interpret {
namespace {

using namespace program;

// The names of a closed enum, found by trying each member.
template <class E>
bool find_named(std::string_view text, E last, E& out) {
  for (int i = 0; i <= static_cast<int>(last); ++i)
    if (name_of(static_cast<E>(i)) == text) return out = static_cast<E>(i), true;
  return false;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Program run() {
    while (!text_.empty()) {
      const size_t end = text_.find('\n');
      std::string_view line = text_.substr(0, end);
      text_ = end == std::string_view::npos ? std::string_view{} : text_.substr(end + 1);
      ++line_;
      if (const size_t hash = line.find('#'); hash != std::string_view::npos) line = line.substr(0, hash);
      words_ = line;
      const std::string_view first = word();
      if (first.empty()) continue;
      if (!named_) {
        if (first != "program") bad("'program NAME' on the first line", first);
        program_.name = needed("a program name");
        named_ = true;
      } else if (first == "lane") {
        const std::string name{needed("a lane name")};
        program_.lanes.push_back({name, std::string(needed("a resource"))});
      } else if (first == "attrs") {
        attrs();
      } else if (first == "repeat") {
        program_.repeat.microbatch = number<int32_t>(needed("a microbatch"), "a microbatch");
        program_.repeat.times = number<int64_t>(needed("a number of passes"), "a number of passes");
      } else if (first == "value") {
        value();
      } else {
        stage(first);
      }
      if (const std::string_view rest = word(); !rest.empty()) bad("the end of the line", rest);
    }
    if (!named_) base::fail("empty program text; it must begin with 'program NAME'");
    return std::move(program_);
  }

 private:
  [[noreturn]] void bad(std::string_view needed, std::string_view got) const {
    base::fail("program text line {}: needed {}, got '{}'", line_, needed, got);
  }

  std::string_view word() {
    const size_t begin = words_.find_first_not_of(" \t\r");
    if (begin == std::string_view::npos) return words_ = {};
    const size_t end = words_.find_first_of(" \t\r", begin);
    const std::string_view out = words_.substr(begin, end == std::string_view::npos ? end : end - begin);
    words_ = end == std::string_view::npos ? std::string_view{} : words_.substr(end);
    return out;
  }
  std::string_view needed(std::string_view what) {
    const std::string_view w = word();
    if (w.empty()) bad(what, "the end of the line");
    return w;
  }
  template <class T>
  T number(std::string_view text, std::string_view what) const {
    T out{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (error != std::errc{} || end != text.data() + text.size()) bad(what, text);
    return out;
  }
  static bool eat(std::string_view& text, std::string_view prefix) {
    if (!text.starts_with(prefix)) return false;
    text.remove_prefix(prefix.size());
    return true;
  }

  void attrs() {
    const auto index = number<size_t>(needed("a set number"), "a set number");
    if (index != program_.attrs.size())
      bad(fmt::format("attribute set {}", program_.attrs.size()), fmt::format("{}", index));
    AttrSet set;
    for (std::string_view w = word(); !w.empty(); w = word()) {
      const size_t eq = w.find('=');
      if (eq == std::string_view::npos) bad("key=number", w);
      set.push_back({std::string(w.substr(0, eq)), number<double>(w.substr(eq + 1), "a number")});
    }
    program_.attrs.push_back(std::move(set));
  }

  ValueId find(std::string_view name) const {
    const auto it = ids_.find(std::string(name));
    if (it == ids_.end()) bad("a declared value", name);
    return it->second;
  }

  void value() {
    Value v;
    v.name = needed("a value name");
    const NameParts parts = read_name(v.name);
    v.microbatch = parts.microbatch, v.layer = parts.layer;
    const std::string_view type = needed("dtype[dims]");
    const size_t open = type.find('[');
    if (open == std::string_view::npos || !type.ends_with(']')) bad("dtype[dims]", type);
    if (!find_named(type.substr(0, open), tensor::kLastDtype, v.dtype))
      bad("a dtype (" + tensor::known_dtypes() + ")", type);
    std::string_view dims = type.substr(open + 1, type.size() - open - 2);
    while (!dims.empty()) {
      const size_t comma = dims.find(',');
      v.shape.push_back(number<int64_t>(dims.substr(0, comma), "a dimension"));
      dims = comma == std::string_view::npos ? std::string_view{} : dims.substr(comma + 1);
      if (comma != std::string_view::npos && dims.empty()) bad("a dimension behind ','", type);
    }
    const std::string_view owner = needed("an owner");
    if (!find_named(owner, Owner::Results, v.owner)) bad("an owner", owner);
    const std::string_view life = needed("a life");
    if (!find_named(life, Life::Persistent, v.life)) bad("a life", life);
    for (std::string_view w = word(); !w.empty(); w = word()) {
      if (eat(w, "space=")) {
        if (!find_named(w, Space::Window, v.space)) bad("a space", w);
      } else if (eat(w, "view=")) {
        const size_t plus = w.rfind('+');
        if (plus == std::string_view::npos) bad("view=NAME+BYTES", w);
        v.view_of = find(w.substr(0, plus));
        v.offset = number<int64_t>(w.substr(plus + 1), "a byte offset");
      } else if (eat(w, "scale_of=")) {
        v.scale_of = find(w);
      } else if (eat(w, "rows=")) {
        const size_t slash = w.find('/');
        if (slash == std::string_view::npos) bad("rows=EXPECTED/MAXIMUM", w);
        v.expected_rows = number<int64_t>(w.substr(0, slash), "a row count");
        v.maximum_rows = number<int64_t>(w.substr(slash + 1), "a row count");
      } else {
        bad("space=, view=, scale_of= or rows=", w);
      }
    }
    if (!ids_.emplace(v.name, static_cast<ValueId>(program_.values.size())).second)
      bad("a new value name", v.name);
    program_.values.push_back(std::move(v));
  }

  // Spaces of a stage's name are commas inside another stage's line.
  StageId stage_named(std::string_view commas) {
    for (; stages_known_ < program_.stages.size(); ++stages_known_) {
      std::string name = stage_name(program_.stages[stages_known_]);
      std::replace(name.begin(), name.end(), ' ', ',');
      stage_ids_.emplace(std::move(name), static_cast<StageId>(stages_known_));
    }
    const auto it = stage_ids_.find(std::string(commas));
    if (it == stage_ids_.end()) bad("an earlier stage", commas);
    return it->second;
  }

  void stage(std::string_view phase) {
    Stage s;
    if (!find_named(phase, Phase::Update, s.phase))
      bad("program, lane, attrs, repeat, value or a phase", phase);
    std::string_view w = needed("an operation");
    const auto tagged = [&](std::string_view prefix, auto& field) {
      if (w.size() <= prefix.size() || !w.starts_with(prefix)) return;
      const std::string_view digits = w.substr(prefix.size());
      if (digits.find_first_not_of("0123456789") != std::string_view::npos) return;
      field = number<std::remove_reference_t<decltype(field)>>(digits, "a number");
      w = needed("an operation");
    };
    tagged("model", s.model);
    tagged("mb", s.microbatch);
    tagged("c", s.chunk);
    tagged("L", s.layer);
    std::string_view op = w;
    if (const size_t dot = w.find('.'); dot != std::string_view::npos) {
      op = w.substr(0, dot);
      s.part = number<int32_t>(w.substr(dot + 1), "a part number");
    }
    if (!find_named(op, static_cast<Op>(num_ops() - 1), s.op)) bad("an operation", op);
    bool has_lane = false;
    for (w = needed("@LANE"); w != ":"; w = needed("':'")) {
      if (w == "(replay)") {
        s.replay = 1;
      } else if (eat(w, "@")) {
        size_t lane = 0;
        while (lane < program_.lanes.size() && program_.lanes[lane].name != w) ++lane;
        if (lane == program_.lanes.size()) bad("a declared lane", w);
        s.lane = static_cast<int16_t>(lane);
        has_lane = true;
      } else if (eat(w, "group=")) {
        if (!find_named(w, static_cast<Group>(kNumGroups - 1), s.group)) bad("a group", w);
      } else if (eat(w, "peer=")) {
        if (!find_named(w, Peer::Previous, s.peer)) bad("a peer", w);
      } else if (eat(w, "attrs=")) {
        s.attrs = number<int32_t>(w, "an attribute set");
        if (s.attrs < 0 || s.attrs >= static_cast<int32_t>(program_.attrs.size()))
          bad("a declared attribute set", w);
      } else if (eat(w, "after=")) {
        s.after.push_back(stage_named(w));
      } else if (eat(w, "scratch=")) {
        s.scratch = find(w);
      } else {
        bad("@LANE, group=, peer=, attrs=, after=, scratch= or ':'", w);
      }
    }
    if (!has_lane) bad("@LANE", ":");
    const auto& arguments = arguments_of(s.op, s.phase);
    std::vector<std::vector<Use>> given(arguments.size());
    for (w = word(); !w.empty(); w = word()) {
      if (w == "->") continue;
      const size_t eq = w.find('=');
      if (eq == std::string_view::npos || eq == 0) bad("argument=value", w);
      std::string_view name = w.substr(0, eq);
      const bool update = name.ends_with('+');
      if (update) name.remove_suffix(1);
      size_t i = 0;
      while (i < arguments.size() && arguments[i].name != name) ++i;
      if (i == arguments.size())
        bad(fmt::format("an argument of {} {}", name_of(s.phase), name_of(s.op)), name);
      if (!given[i].empty() && !arguments[i].repeated) bad("each argument once", name);
      given[i].push_back({find(w.substr(eq + 1)), update                ? Access::Update
                                                  : arguments[i].output ? Access::Write
                                                                        : Access::Read});
    }
    for (std::vector<Use>& uses : given) {
      if (uses.empty()) uses.push_back({});  // absent: check says whether it may be
      s.uses.insert(s.uses.end(), uses.begin(), uses.end());
    }
    program_.stages.push_back(std::move(s));
  }

  std::string_view text_, words_;
  int line_ = 0;
  bool named_ = false;
  Program program_;
  std::unordered_map<std::string, ValueId> ids_;
  size_t stages_known_ = 0;
  std::unordered_map<std::string, StageId> stage_ids_;
};

}  // namespace

Program parse(std::string_view text) { return Parser(text).run(); }

}  // namespace pleat::interpret
