#include "report/write_report.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "report/html/page.h"
#include "report/run_data.h"

namespace pleat::report {

WrittenReport write_report(const std::string& run_dir, const std::string& out_html) {
  const RunData run = read_run(run_dir);
  const std::string page = html::page(run);
  const std::string temporary = out_html + ".tmp";
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    out.write(page.data(), static_cast<std::streamsize>(page.size()));
    out.close();
    if (!out) {
      const int error = errno;
      std::remove(temporary.c_str());
      base::fail_with(base::ExitCode::Storage, "cannot write {}: {}", temporary, std::strerror(error));
    }
  }
  if (std::rename(temporary.c_str(), out_html.c_str()) != 0)
    base::fail_with(base::ExitCode::Storage, "cannot write {}: {}", out_html, std::strerror(errno));
  return {run.last ? run.last->step : 0, run.log_faults};
}

}  // namespace pleat::report
