// What is said about a command line that cannot be understood: the word that was got, and what was probably
// meant.
#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace pleat::apps {

// A sentence without "pleat: " and without a line end. `app` is the one that threw.
std::string parse_fault(const CLI::App& app, const CLI::ParseError& error);

// "pleat", or "pleat data tokenize": the sub-command that was typed, as far as it was understood.
std::string typed_command(const CLI::App& app);

}  // namespace pleat::apps
