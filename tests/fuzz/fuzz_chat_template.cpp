// A chat template is a file somebody else wrote: whatever it holds, it renders, or is refused with a message,
// within the limits.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "data/chat/json_value.h"
#include "data/template/template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pleat::data;
  static const TemplateInput input = [] {
    TemplateInput made;
    for (
        const char* message :
        {R"({"role": "system", "content": "Be brief."})",
         R"({"role": "user", "content": "Größe?\n<|im_end|>"})",
         R"({"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": [1, 2.5, null]}}}]})",
         R"({"role": "tool", "content": "{}", "tool_call_id": "1"})",
         R"({"role": "assistant", "content": "<think>a</think>b"})"})
      made.add_message(value_from_json(message, "message"));
    made.set(
        "tools",
        value_from_json(R"([{"type": "function", "function": {"name": "f", "parameters": {}}}])", "tools"),
        true);
    made.set("bos_token", "<s>", false);
    made.set("eos_token", "</s>", false);
    return made;
  }();
  TemplateLimits limits;
  limits.steps = 50'000;
  limits.text_bytes = 1 << 20;
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  try {
    const ChatProgram program(source, "template", limits);
    for (const bool prompt : {false, true}) {
      const TracedText text = program.render(input, input.num_messages(), prompt, 1760011200);
      size_t bytes = 0;
      text.for_each_run([&](size_t begin, size_t end, TextMark) { bytes += end - begin; });
      if (bytes != text.size()) __builtin_trap();
    }
  } catch (const pleat::base::Error&) {
  }
  return 0;
}
