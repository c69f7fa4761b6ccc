// `pleat --version`: which source this binary was made of, and what is built into it.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace pleat::apps {

// Lines for people, or one JSON object.
std::string version_text();
std::string version_json();

// Adds --version and, beside it, --json to the command line.
void add_version(CLI::App& app);

}  // namespace pleat::apps
