#include "report/report_support.h"

namespace pleat::report {

StepRecord sample_record(int64_t step) {
  StepRecord record;
  record.step = step;
  record.loss = 1.0 / 3.0 + static_cast<double>(step);
  record.aux = {{"load_balance", 0.1 + 0.2}, {"z", 5e-324}};
  record.lr = 3e-4;
  record.grad_norm = 0x1.fffffffffffffp+1023;
  record.clip_scale = 0.7;
  record.tokens = 9007199254740993;  // 2^53 + 1: no double
  record.tokens_per_s = 12345.678901234567;
  record.model_tflops = 0.1;
  record.hardware_tflops = 0.12;
  record.percent_of_gemm = 61.25;
  record.step_seconds = 0.333;
  record.refused_steps = 2;
  record.eval = EvalRecord{1.5, 2.25};
  const std::vector<int64_t> load = {10, 0, 30, 40};
  const std::vector<float> bias = {-0.5f, 0.25f, 0.1f, 0.0f};
  record.health.push_back(router_health(3, load, 4, {7.5, 1.25}, bias));
  record.codes = {{"experts", "gradients", 9007199254740993, 0, 1200, 0, 0.1 + 0.2},
                  {"attention", "weights", 4096, 3, 0, 1, 7.5}};
  return record;
}

namespace {

bool is_void(const std::string& name) { return name == "!DOCTYPE" || name == "meta" || name == "br"; }

bool is_reference(const std::string& text, size_t at) {
  for (const char* known : {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"})
    if (text.compare(at, std::string(known).size(), known) == 0) return true;
  return false;
}

}  // namespace

std::string markup_fault(const std::string& markup) {
  std::vector<std::string> open;
  const auto near = [&](size_t at) { return " near: " + markup.substr(at, 60); };
  for (size_t at = 0; at < markup.size();) {
    if (markup[at] == '&' && !is_reference(markup, at)) return "bare &" + near(at);
    if (markup[at] == '>') return "bare >" + near(at);
    if (markup[at] != '<') {
      ++at;
      continue;
    }
    size_t end = at + 1;
    bool quoted = false;
    for (; end < markup.size() && (quoted || markup[end] != '>'); ++end) {
      if (markup[end] == '"') quoted = !quoted;
      if (markup[end] == '<') return "< inside a tag" + near(at);
      if (!quoted && markup[end] == '=' && markup[end + 1] != '"') return "unquoted attribute" + near(at);
    }
    if (end == markup.size()) return "unfinished tag" + near(at);
    const std::string tag = markup.substr(at + 1, end - at - 1);
    const bool closing = tag.front() == '/', self_closing = tag.back() == '/';
    const size_t start = closing ? 1 : 0;
    const std::string name = tag.substr(start, tag.find_first_of(" /", start) - start);
    if (closing) {
      if (open.empty() || open.back() != name)
        return "</" + name + "> closes " + (open.empty() ? "nothing" : open.back()) + near(at);
      open.pop_back();
    } else if (!self_closing && !is_void(name)) {
      open.push_back(name);
    }
    at = end + 1;
    if (!closing && (name == "style" || name == "script")) at = markup.find("</" + name + ">", at);
  }
  return open.empty() ? "" : "never closed: " + open.back();
}

}  // namespace pleat::report
