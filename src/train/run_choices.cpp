#include "train/run_choices.h"

#include <algorithm>

#include "base/error.h"
#include "base/replace_file.h"
#include "kernels/cuda/choices.h"
#include "train/choices_cache.h"
#include "train/matmul_choices.h"

namespace pleat::train {
namespace {

// Those that earlier runs on this machine have measured.
std::string read_kept_choices() {
  const std::string folder = cache_folder();
  if (folder.empty()) return {};
  std::string line;
  const std::string file = choices_cache_path(folder, matmul_machine());
  const SavedChoices kept = read_choices_cache(file, matmul_machine(), line);
  if (kept.choices.empty()) return line;
  kernels::use_matmul_choices(kept.choices);
  return fmt::format("{} algorithms of dense products known from {}; others are measured",
                     kept.choices.size(), file);
}

std::string read_choices(const config::Config& config, const Start& start) {
  base::Vfs& vfs = *start.vfs;
  const std::string file = config.log.run_dir + "/" + kMatmulChoicesFile;
  std::string text, where;
  bool asked = false;
  if (start.from && start.from->manifest().texts.contains(kMatmulChoices))
    text = start.from->text(kMatmulChoices), where = start.from->path();
  else if (vfs.stat(file))
    text = base::read_file(vfs, file, kMaxMatmulChoicesBytes), where = file;
  else if (where = config.device.matmul_choices; !where.empty())
    text = base::read_file(vfs, where, kMaxMatmulChoicesBytes), asked = true;
  else
    return read_kept_choices();
  TakenChoices taken = take(choices_from_json(text, where), matmul_machine(), where);
  if (asked && taken.use.empty()) base::fail("device.matmul_choices: {}", taken.line);
  kernels::use_matmul_choices(taken.use);
  return taken.line;
}

// All ranks know from now on what rank `from` knows.
void tell_choices(runtime::Crew& crew, int from) {
  if (crew.meeting(comm::Buffers::Device) == program::Meeting::OnHost) return;  // threads share one table
  const bool tells = crew.setup().rank() == from;
  const std::string text =
      crew.tell("choices of algorithms", tells ? to_json(current_choices()) : std::string(), from);
  const std::string where = fmt::format("rank {}", from);
  if (!tells) kernels::use_matmul_choices(take(choices_from_json(text, where), matmul_machine(), where).use);
}

}  // namespace

std::string take_choices(const config::Config& config, const Start& start, runtime::Crew& crew) {
  if (config.device.kind != "cuda") return {};
  std::string line =
      crew.tell("algorithms of products", crew.leads() ? read_choices(config, start) : std::string());
  tell_choices(crew, 0);
  return line;
}

void bind_with_one_choice(runtime::Crew& crew, const std::function<void()>& bind) {
  const std::vector<int>& mine = crew.setup().place.members[static_cast<size_t>(program::Group::Pipeline)];
  std::vector<int64_t> first(std::max<size_t>(mine.size(), 1), 0);
  for (size_t stage = 0; stage < mine.size(); ++stage) first[stage] = mine[stage];
  crew.tell("first ranks of stages", first);  // of the leader's pipeline
  bool bound = false;
  for (const int64_t rank : first) {
    if (rank == crew.setup().rank()) {
      bind();
      bound = true;
    }
    tell_choices(crew, static_cast<int>(rank));
  }
  if (!bound) bind();
}

std::string keep_choices(const config::Config& config) {
  const SavedChoices now = current_choices();
  base::replace_file(config.log.run_dir + "/" + kMatmulChoicesFile, to_json(now));
  const std::string folder = cache_folder();
  return folder.empty() ? "" : add_to_choices_cache(choices_cache_path(folder, now.machine), now);
}

}  // namespace pleat::train
