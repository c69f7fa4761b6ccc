#include "train/data_identity.h"

#include <algorithm>
#include <functional>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "data/fingerprint.h"

namespace pleat::train {
namespace {

constexpr char kSampled[] = "sampled sha256 ";
constexpr char kDigestsFile[] = "/data_digests";

std::string counts_of(const data::IndexedDataset& set) {
  return fmt::format("{} tokens in {} documents{}", set.num_tokens(), set.num_documents(),
                     set.has_loss_mask() ? " with a loss mask" : "");
}

// As checkpoints before 0.2.0 have it: a look at places spread over the dataset.
std::string sampled_identity_of(const data::IndexedDataset& set) {
  constexpr int64_t kPlaces = 64, kTokens = 64;
  const int64_t total = set.num_tokens(), length = std::min(total, kTokens);
  std::vector<int32_t> tokens(static_cast<size_t>(length));
  std::vector<uint8_t> mask(static_cast<size_t>(length));
  base::Sha256 sha;
  for (int64_t i = 0; i < kPlaces; ++i) {
    const int64_t at = (total - length) / (kPlaces - 1) * i;
    set.read(at, tokens);
    sha.update(std::as_bytes(std::span(tokens)));
    if (!set.has_loss_mask()) continue;
    set.read_loss_mask(at, mask);
    sha.update(std::as_bytes(std::span(mask)));
  }
  return fmt::format("{}, {}{}", counts_of(set), kSampled, sha.hex().substr(0, 16));
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::stringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string identity(const data::Mixture& mixture,
                     const std::function<std::string(const data::IndexedDataset&)>& of) {
  if (mixture.num_sources() == 1) return of(mixture.dataset(0));
  std::string out;
  for (size_t i = 0; i < mixture.num_sources(); ++i)
    out += fmt::format("{}source {} with weight {}: {}", i == 0 ? "" : "\n", i, mixture.weight(i),
                       of(mixture.dataset(i)));
  return out;
}

}  // namespace

std::string data_identity(const data::Mixture& mixture, const std::string& run_folder, int num_threads) {
  return identity(mixture, [&](const data::IndexedDataset& set) {
    const std::string digest = data::cached_fingerprint(set, num_threads, run_folder + kDigestsFile);
    return fmt::format("{}, sha256 {}", counts_of(set), digest.substr(0, 32));
  });
}

bool is_same_data(const std::string& saved, const std::string& now, const data::Mixture& mixture) {
  if (saved.find(kSampled) == std::string::npos) return saved == now;
  return saved == identity(mixture, sampled_identity_of);
}

std::string data_change(const std::string& saved, const std::string& now) {
  const std::vector<std::string> before = lines_of(saved), after = lines_of(now);
  if (before.size() != after.size())
    return fmt::format("{} source{} then, {} now", before.size(), before.size() == 1 ? "" : "s",
                       after.size());
  std::string out;
  for (size_t i = 0; i < before.size(); ++i)
    if (before[i] != after[i])
      out += fmt::format("{}{} then, {} now", out.empty() ? "" : "; ", before[i], after[i]);
  return out;
}

size_t num_sources_in(const std::string& identity) { return lines_of(identity).size(); }

}  // namespace pleat::train
