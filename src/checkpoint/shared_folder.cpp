#include "checkpoint/shared_folder.h"

#include <random>
#include <thread>

#include "checkpoint/directory.h"

namespace pleat::checkpoint {

namespace {

constexpr std::chrono::milliseconds kLookAgain{200};

std::string random_word() {
  std::random_device source;
  std::string word;
  for (int i = 0; i < 4; ++i) word += fmt::format("{:08x}", source());
  return word;
}

// A leftover by its name, of which nothing is kept and which the next save removes.
std::string path_of(const std::string& directory, const std::string& word) {
  return base::join_path(directory, fmt::format("{}.tmp-{}", kLatestName, word));
}

void write_word(base::Vfs& vfs, const std::string& path, const std::string& word) {
  base::File file = base::File::create(vfs, path);
  file.write(std::as_bytes(std::span(word)));
  file.close();
}

// "": it is there. Else what is there in its place.
std::string why_not_there(base::Vfs& vfs, const std::string& path, const std::string& word) {
  try {
    return base::read_file(vfs, path, static_cast<int64_t>(word.size())) == word ? ""
                                                                                 : "it holds another text";
  } catch (const base::Error& error) {
    return error.what();
  }
}

}  // namespace

void require_shared(base::Vfs& vfs, const std::string& directory, Peers& peers,
                    std::chrono::milliseconds patience) {
  if (peers.size() == 1) return;
  const Team::Work look = [&](const std::string& word) {
    const auto until = std::chrono::steady_clock::now() + patience;
    for (;;) {
      std::string why = why_not_there(vfs, path_of(directory, word), word);
      if (why.empty()) return why;
      if (std::chrono::steady_clock::now() >= until)
        base::fail_with(
            base::ExitCode::Storage,
            "does not see what rank 0 has put into '{}': {}; needed is one folder of checkpoints that "
            "all hosts share (checkpoint.dir)",
            directory, why);
      std::this_thread::sleep_for(kLookAgain);
    }
  };
  Team team(peers, look);
  team.run([&] {
    const std::string word = random_word(), path = path_of(directory, word);
    write_word(vfs, path, word);
    try {
      team.all(word);
    } catch (...) {
      vfs.unlink(path);
      throw;
    }
    vfs.unlink(path);
    return std::string();
  });
}

}  // namespace pleat::checkpoint
