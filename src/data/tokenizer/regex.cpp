#include "data/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {
namespace {

constexpr size_t kJitStackStart = 64 << 10;
constexpr size_t kJitStackLimit = 8 << 20;
constexpr uint32_t kMatchLimit = 50'000'000;
constexpr uint32_t kHeapLimitKib = 512 << 10;
constexpr size_t kMaxPatternBytes = 1 << 16;

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  bool jit = false;
  ~Code() { pcre2_code_free(code); }
};

struct Regex::Workspace::State {
  pcre2_match_data* match_data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  ~State() {
    pcre2_match_data_free(match_data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

Regex::Workspace::Workspace() : state_(std::make_unique<State>()) {
  state_->match_data = pcre2_match_data_create(1, nullptr);
  state_->context = pcre2_match_context_create(nullptr);
  PLEAT_CHECK(state_->match_data != nullptr && state_->context != nullptr, "PCRE2 has no memory");
  pcre2_set_match_limit(state_->context, kMatchLimit);
  pcre2_set_heap_limit(state_->context, kHeapLimitKib);
  state_->stack = pcre2_jit_stack_create(kJitStackStart, kJitStackLimit, nullptr);
  if (state_->stack != nullptr) pcre2_jit_stack_assign(state_->context, nullptr, state_->stack);
}
Regex::Workspace::~Workspace() = default;

Regex::Regex(std::string_view pattern, PatternDialect dialect, std::string_view where)
    : pattern_(pattern), where_(where), code_(std::make_unique<Code>()) {
  if (pattern.size() > kMaxPatternBytes)
    base::fail("{}: a pattern of {} bytes; at most {} are supported", where, pattern.size(),
               kMaxPatternBytes);
  const std::string translated = to_pcre2(pattern, dialect, where);
  std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  PLEAT_CHECK(context != nullptr, "PCRE2 has no memory");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE;
  // Oniguruma's ^ and $ are those of a line; Rust's $ is the very end only.
  options |= dialect == PatternDialect::Oniguruma ? PCRE2_MULTILINE : PCRE2_DOLLAR_ENDONLY;
  int error = 0;
  size_t error_at = 0;
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), options,
                              &error, &error_at, context.get());
  if (code_->code == nullptr) {
    char message[256] = {};
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof(message));
    base::fail("{}: pattern \"{}\" does not compile: {}", where, shown(pattern), shown(message, 120));
  }
  code_->jit = pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE) == 0;
}
Regex::~Regex() = default;

bool Regex::find(std::string_view text, size_t at, Match& match, Workspace& workspace) const {
  Workspace::State& w = *workspace.state_;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  int result = PCRE2_ERROR_JIT_STACKLIMIT;
  if (code_->jit) result = pcre2_jit_match(code_->code, subject, text.size(), at, 0, w.match_data, w.context);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT)
    result = pcre2_match(code_->code, subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         w.match_data, w.context);
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0) {
    char message[256] = {};
    pcre2_get_error_message(result, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof(message));
    base::fail("{}: pattern \"{}\" gives up on this text: {}", where_, shown(pattern_), shown(message, 120));
  }
  const size_t* bounds = pcre2_get_ovector_pointer(w.match_data);
  match = {bounds[0], bounds[1]};
  return true;
}

}  // namespace pleat::data
