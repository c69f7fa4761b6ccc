#include "kernels/cuda/matmul_table.h"

#include <map>
#include <mutex>

#include "kernels/cuda/choices.h"

namespace pleat::kernels {
namespace {

std::mutex mutex;  // of the two below
std::map<MatmulKey, MatmulChoice> known;
int64_t num_measured = 0;

}  // namespace

bool cuda::find_choice(const MatmulKey& key, MatmulChoice& out) {
  const std::lock_guard lock(mutex);
  const auto at = known.find(key);
  if (at == known.end()) return false;
  out = at->second;
  return true;
}

MatmulChoice cuda::add_choice(const MatmulChoice& choice, bool measured) {
  const std::lock_guard lock(mutex);
  num_measured += measured;
  return known.emplace(choice.key, choice).first->second;
}

std::vector<MatmulChoice> matmul_choices() {
  const std::lock_guard lock(mutex);
  std::vector<MatmulChoice> out;
  for (const auto& [key, choice] : known) out.push_back(choice);
  return out;
}

void use_matmul_choices(const std::vector<MatmulChoice>& choices) {
  const std::lock_guard lock(mutex);
  known.clear();
  for (const MatmulChoice& choice : choices) known.emplace(choice.key, choice);
}

int64_t num_matmuls_measured() {
  const std::lock_guard lock(mutex);
  return num_measured;
}

}  // namespace pleat::kernels
