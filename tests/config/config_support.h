// Small valid configs to start from, and a check of refusals by their message.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "config/config.h"
#include "support/refusal.h"

namespace pleat::config {

inline const std::string kDense = "model.ffn_hidden_size = 64\n";
inline const std::string kMoe = "moe.num_experts = 8\nmoe.ffn_hidden_size = 64\n";

// The message `text` is refused with; empty when it is accepted.
inline std::string refusal(const std::string& text, const std::vector<std::string>& sets = {}) {
  return testing::message_of(base::ExitCode::BadInput, [&] { parse(text, sets, "test.toml"); });
}

inline ::testing::AssertionResult holds(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << text << "\" does not hold \"" << part << "\"";
}

inline ::testing::AssertionResult begins(const std::string& text, const std::string& part) {
  if (text.starts_with(part)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << text << "\" does not begin with \"" << part << "\"";
}

using Words = std::vector<std::string>;

}  // namespace pleat::config
