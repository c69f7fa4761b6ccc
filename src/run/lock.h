// One trainer per run folder, and per folder of checkpoints outside of it. The lock is the kernel's, on the file LOCK: it goes when its holder does,
// however that ends, so a killed run leaves nothing to remove. What the file says is for people.
#pragma once

#include <string>

namespace pleat::run {

inline constexpr char kLockName[] = "LOCK";

// The configuration key that names a folder, for messages.
inline constexpr char kRunKey[] = "log.run_dir";
inline constexpr char kCheckpointKey[] = "checkpoint.dir";

// Makes the folder where there is none; whether it did. Throws, naming the key, where that cannot be.
bool make_folder(const std::string& folder, const std::string& key = kRunKey);

// Throws ExitCode::Storage where LOCK in this folder is something else than a plain file, saying what. Nothing there is
// no fault. Also for who takes no lock: whoever comes later would.
void require_lock_is_file(const std::string& folder);

// How a lock is asked for: ::flock, or something else in tests.
using FlockCall = int (*)(int file, int operation);

class Lock {
 public:
  // Makes the folder if there is none. Throws, naming host, pid and start of the holder, when another process
  // trains there; when LOCK is no plain file; and when the file system has no working locks, which is tried by asking
  // twice.
  static Lock take(const std::string& folder, const std::string& key = kRunKey);
  static Lock take(const std::string& folder, const std::string& key, FlockCall flock);
  // Whether somebody holds the lock of this folder now. Writes nothing.
  static bool is_held(const std::string& folder);

  Lock(Lock&& other) noexcept;
  Lock& operator=(Lock&&) = delete;
  // A lock that was never signed leaves the folder as it was found.
  ~Lock();

  // Says in LOCK who holds it. Only from here on is anything written into the folder.
  void sign();

  // Throws ExitCode::Storage where LOCK is not the locked file any more: another trainer could have come in.
  void require_kept() const;

 private:
  Lock(std::string folder, int file, bool made_folder, bool made_file)
      : folder_(std::move(folder)), file_(file), made_folder_(made_folder), made_file_(made_file) {}
  std::string folder_;
  int file_ = -1;
  bool made_folder_ = false, made_file_ = false, signed_ = false;
};

}  // namespace pleat::run
