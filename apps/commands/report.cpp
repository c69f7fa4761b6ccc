#include <CLI/CLI.hpp>

#include "base/error.h"
#include "command.h"
#include "report/write_report.h"
#include "run/place.h"

namespace pleat::apps {

void add_report(CLI::App& command, Action& chosen) {
  auto run = std::make_shared<std::string>(), out = std::make_shared<std::string>();
  CLI::App* c = &command;
  c->add_option("run", *run, "Run folder (log.run_dir)")->required();
  c->add_option("--out", *out, "Page to write (default: RUN/report.html)");
  add_example(*c, "pleat report runs/demo");
  c->callback([run, out, &chosen] {
    chosen = [run, out] {
      run::require_run_folder(*run);
      const std::string page = out->empty() ? *run + "/report.html" : *out;
      const report::WrittenReport written = report::write_report(*run, page);
      for (const std::string& fault : written.log_faults)
        fmt::print(stderr, "note: {}; the report leaves this line out\n", fault);
      fmt::print(stderr, "using the log up to step {}\n", written.last_step);
      fmt::print("{}\n", page);
      return 0;
    };
  });
}

}  // namespace pleat::apps
