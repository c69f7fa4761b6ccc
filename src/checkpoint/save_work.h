// What every rank does in a save when the leader asks for it (team.h): orders and answers, as text.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/vfs.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "checkpoint/share.h"

namespace pleat::checkpoint {

// A rank's share as its answer describes it.
struct Description {
  std::string table_sha256;  // of what all ranks must agree on: step, names, types, shapes, rows
  std::vector<SliceEntry> slices;
};

namespace order {

// Each rank digests its share from live memory and says which slices it has.
std::string describe();
Description description(const std::string& answer);
// Each rank writes its shards of the manifest, whose tensors have no digests yet, into `directory`. starts[r]: where
// the stream of rank r begins.
std::string write(const std::string& directory, const Manifest& manifest, const std::vector<int64_t>& starts);
// Each rank reads some tensors of what was written, whoever wrote it, and says their digests, in order.
std::string read_back();
std::vector<base::Sha256Digest> digests(const std::string& answer);
// Each rank verifies some tensors of the checkpoint the leader has opened.
std::string verify(const Loaded& checkpoint);
// Each rank says whether that checkpoint holds the bytes it owns.
std::string compare(const Loaded& checkpoint);
bool is_same(const std::string& answer);

}  // namespace order

// Carries out order::verify, on its own or in a save.
void verify_as_ordered(base::Vfs& vfs, const std::string& order, int rank, int size);

class SaveWork {
 public:
  // All outlive this.
  SaveWork(base::Vfs& vfs, const Share& share, int rank, int size, int max_file_attempts)
      : vfs_(vfs), share_(share), rank_(rank), size_(size), max_file_attempts_(max_file_attempts) {}
  std::string carry_out(const std::string& order);

 private:
  std::string describe();
  void write(const std::string& directory, const std::string& manifest, int64_t start);
  std::string read_back();
  bool holds_share(const Loaded& checkpoint);

  base::Vfs& vfs_;
  const Share& share_;
  const int rank_, size_, max_file_attempts_;
  std::optional<ShareStream> stream_;
  std::string directory_;
  Manifest manifest_;
};

}  // namespace pleat::checkpoint
