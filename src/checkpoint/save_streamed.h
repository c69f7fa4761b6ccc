// A checkpoint of a state that is never in memory as a whole: its tensors come one after the other, each from its first
// byte to its last, and go to the disk as they come. Nothing is kept but a block and the table of contents. Tensors that
// are all zero cost nothing.
//
// 1. A temporary directory step-N.tmp-I gets PLAN: the digest of everything that is known before the first byte.
// 2. Shards are written one after the other under a name of their own, fsynced, and renamed when they are whole, each
//    with a file of the digests of what it holds, as it came.
// 3. All of it is read back and compared with these digests.
// 4. PLAN and the digests go; MANIFEST and the commit as in every save (save.h).
//
// A save that was cut short is worth something here: where the same one is asked for again, it goes on behind the last
// whole shard. What it finds counts for as much as what it writes: all is read back before the commit.
#pragma once

#include <functional>

#include "checkpoint/save.h"

namespace pleat::checkpoint {

struct StreamedTensor {
  std::string name;
  tensor::Dtype dtype;
  std::vector<int64_t> shape;
  bool zero = false;  // every byte; it is not asked for
};

struct StreamedState {
  int64_t step = 0;
  std::vector<StreamedTensor>
      tensors;  // their order does not matter: they are asked for in ascending order of names
  std::map<std::string, int64_t> integers;
  std::map<std::string, double> reals;
  std::map<std::string, std::string> texts;
  // Says where the bytes come from: two saves of the same have the same bytes.
  std::string source;
  // Asked when all is written, before the commit: throws where the source is another by now. May be empty.
  std::function<void()> require_same = {};
};

using Sink = std::function<void(std::span<const std::byte>)>;
// Hands over the bytes of a tensor from `begin` on, in order, as many at a time as it likes.
using Pour = std::function<void(const std::string& tensor, int64_t begin, const Sink& sink)>;

struct StreamProgress {
  enum Phase { Write, ReadBack } phase = Write;  // ReadBack: of anything that is read to be compared
  int64_t done = 0, total = 0;                   // bytes of this phase
  int64_t found = 0;                             // of `done`: what an earlier process has written
};

struct StreamWatch {
  std::function<void(const StreamProgress&)> progress = {};  // every block
  // Asked every block: whether to stop. Then the save throws ExitCode::Retry, and can be gone on with.
  std::function<bool()> stop = {};
  // What becomes of the work where it is asked to stop, for the message.
  std::string stopped = "what was written stays, and the same command goes on with it";

  // Both of the above.
  void tell(const StreamProgress& now) const;
};

// What fails because of the bytes themselves (bad input, Storage from the read-back) removes what was written; after
// a stop, a kill or a failing disk it stays, to be gone on with. `options`: keep and valid_loss are not looked at, and a
// file whose fsync fails ends the save.
// A step-N that is there is left as it is where it came from the same source, replaced where it is damaged, and bad
// input otherwise.
SaveResult save_streamed(base::Vfs& vfs, const std::string& directory, const StreamedState& state,
                         const Pour& pour, const SaveOptions& options, const StreamWatch& watch = {});

// Bytes the same save would still have to write.
int64_t bytes_to_stream(base::Vfs& vfs, const std::string& directory, const StreamedState& state,
                        const SaveOptions& options);

}  // namespace pleat::checkpoint
