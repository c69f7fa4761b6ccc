// Strict JSON for files nobody vouches for: one object, events instead of a tree, no recursion.
//
// What every reader gets without asking: valid UTF-8, no zero byte, nesting of at most kMaxDepth, keys of at
// most kMaxNameBytes and without control characters, no doubled key in any object, nothing behind the object
// but white space. Whole numbers arrive as integers; they are never a double in between.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pleat::safetensors {

inline constexpr int kMaxDepth = 32;
inline constexpr int64_t kMaxNameBytes = 1024;
inline constexpr uint64_t kMaxNumber = uint64_t{1} << 53;

// Handlers refuse by throwing.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual void begin_object() = 0;
  virtual void end_object() = 0;
  virtual void begin_array() = 0;
  virtual void end_array() = 0;
  virtual void key(const std::string& name) = 0;
  virtual void text(const std::string& value) = 0;
  // Written as digits only and at most kMaxNumber.
  virtual void whole_number(int64_t value) = 0;
  // null, booleans and all other numbers; `what` describes it for a message: "a negative number".
  virtual void other(std::string_view what) = 0;
};

// Throws base::Error, its message opening with `where`, when the text breaks a rule above.
void read_json(std::string_view text, const std::string& where, JsonEvents& events);

// Text from a file, made safe for a terminal and a log: quoted, everything but printable ASCII escaped, long
// text cut.
std::string shown(std::string_view text);

// The JSON string literal of valid UTF-8 text.
std::string json_string(std::string_view text);

}  // namespace pleat::safetensors
