// Every default that `explain-config` prints may be written down.
#include "config/schema.h"
#include "config_support.h"

namespace pleat::config {
namespace {

TEST(ConfigExplain, EveryPrintedDefaultIsAcceptedOrHasNoEffect) {
  for (const Key& key : schema()) {
    const std::string text = explain(key.path);
    const size_t at = text.find("  default   ");
    ASSERT_NE(at, std::string::npos) << key.path;
    const std::string value = text.substr(at + 12, text.find('\n', at) - at - 12);
    if (value == "unset") continue;
    // Of a dense or of an MoE model: sizes without a default must be given.
    std::string why;
    for (const std::string& base : {kDense, kMoe}) {
      const bool given = base.find(key.path + " =") != std::string::npos;
      why = given ? refusal("", {key.path + "=" + value}) : refusal(base + key.path + " = " + value + "\n");
      if (why.empty() || why.find("has no effect here") != std::string::npos || given) break;
    }
    const bool fine = why.empty() || why.find("has no effect here") != std::string::npos ||
                      why.find("is needed") != std::string::npos;
    EXPECT_TRUE(fine) << key.path << " = " << value << ": " << why;
  }
}

}  // namespace
}  // namespace pleat::config
