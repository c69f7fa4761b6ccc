#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/posix_vfs.h"
#include "checkpoint/load.h"
#include "command.h"
#include "data/byte_tokenizer.h"
#include "train/generate.h"

namespace pleat::apps {

void add_generate(CLI::App& app, Action& chosen) {
  struct Arguments {
    std::string run, prompt = "The ";
    train::GenerateOptions options;
  };
  auto a = std::make_shared<Arguments>();
  CLI::App* c = app.add_subcommand("generate", "Continue a prompt with the newest checkpoint of a run");
  c->add_option("run", a->run, "Run folder (log.run_dir)")->required();
  c->add_option("--prompt", a->prompt, "Text to continue");
  c->add_option("--max-tokens", a->options.max_tokens, "Tokens to draw")->check(CLI::PositiveNumber);
  c->add_option("--temperature", a->options.temperature, "0 takes the most likely token")
      ->check(CLI::NonNegativeNumber);
  c->add_option("--top-k", a->options.top_k, "Draw from the k most likely tokens only (0: all)")
      ->check(CLI::NonNegativeNumber);
  c->add_option("--top-p", a->options.top_p, "Draw from the smallest set with this probability")
      ->check(CLI::PositiveNumber & CLI::Range(0.0, 1.0));
  c->add_option("--seed", a->options.seed, "Seed of the draws");
  add_example(*c, "pleat generate runs/demo --prompt 'hacker: ' --temperature 0.7");
  c->callback([a, &chosen] {
    chosen = [a] {
      const config::Config config = config::resolve(config::load(a->run + "/config.toml"));
      base::PosixVfs vfs;
      const checkpoint::Found found = checkpoint::find_newest(vfs, config.checkpoint.dir);
      if (!found.newest) base::fail("'{}' holds no checkpoint that verifies", config.checkpoint.dir);
      train::ProgramChoice choice;
      choice.train = choice.evaluate = false;
      choice.logits = true;
      train::Programs programs(config, choice);
      checkpoint::restore(*found.newest, programs.targets());
      const data::ByteTokenizer tokenizer;
      a->options.stop_token = tokenizer.end_of_document();
      fmt::print("{}", a->prompt);
      train::generate(programs, tokenizer.encode(a->prompt), a->options, [&](int32_t token) {
        fmt::print("{}", tokenizer.decode(std::vector<int32_t>{token}));
        std::fflush(stdout);
      });
      fmt::print("\n");
      return 0;
    };
  });
}

}  // namespace pleat::apps
