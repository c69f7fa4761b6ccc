// A disk in memory that forgets: it tells bytes and names that an fsync made durable from those that were
// only asked for, and on crash() loses, keeps, reorders or tears the latter. It can also fail any operation,
// run full, lie about fsync, and lose power at any operation.
//
// The model is harsher than common file systems: an fsync of a file does not make its name durable, unsynced
// changes of one directory may survive in any combination, and a failed fsync of a file forgets the bytes it
// should have written while reads still show them (names stay pending, as they do in a journal). A rename is
// atomic. Copying a SimVfs copies the disk.
#pragma once

#include <map>
#include <random>

#include "base/vfs.h"

namespace pleat::base {

// What happens to the changes no fsync covered.
enum class CrashMode {
  DropAll,
  KeepAll,
  Prefix,    // names: those changed before a random moment; bytes: each write at random
  Reorder,   // every name change and every write for itself, at random
  Tear512,   // as Reorder, with each 512-byte sector of a write for itself
  Tear4096,  // as Reorder, with each 4 KiB page of a write for itself
};
inline constexpr CrashMode kCrashModes[] = {CrashMode::DropAll, CrashMode::KeepAll, CrashMode::Prefix,
                                            CrashMode::Reorder, CrashMode::Tear512, CrashMode::Tear4096};

// Thrown by the operation that power loss interrupts and by all later ones. Deliberately no std::exception:
// code under test must not be able to handle it.
struct PowerLoss {};

enum class Fault { Once, Forever };

class SimVfs : public Vfs {
 public:
  SimVfs();

  // Operations are numbered from 0 in call order; a reset starts again at 0 and clears all planned faults.
  int64_t num_operations() const { return num_operations_; }
  int64_t num_fsyncs() const { return num_fsyncs_; }
  void reset_faults();
  // A failed write leaves half its bytes.
  void fail_at(int64_t operation, int error_number, Fault fault);
  void lose_power_at(int64_t operation) { power_loss_at_ = operation; }
  // The numbered fsync or fsync_dir reports success and does nothing.
  void ignore_fsync(int64_t fsync) { ignored_fsync_ = fsync; }
  void set_fsync_lies(bool lies) { fsync_lies_ = lies; }
  // Bytes of file data the disk can hold.
  void set_capacity(int64_t bytes) { capacity_ = bytes; }

  // Power comes back: the disk shows one of the states it may legally be in, all of it durable.
  void crash(CrashMode mode, std::mt19937_64& rng);

  // How often an fsync was asked of a file whose fsync had failed before. Must stay 0.
  int64_t num_fsyncs_after_failure() const { return num_fsyncs_after_failure_; }
  int64_t num_open_files() const { return static_cast<int64_t>(open_files_.size()); }
  // The bytes of a file, to damage them; changes are durable and count as no operation.
  std::vector<std::byte> contents(const std::string& path) const;
  void set_contents(const std::string& path, std::vector<std::byte> bytes);

  int open_read(const std::string& path) override;
  int create(const std::string& path) override;
  void write(int file, const std::string& path, std::span<const std::byte> bytes) override;
  size_t pread(int file, const std::string& path, std::span<std::byte> out, int64_t offset) override;
  void preallocate(int file, const std::string& path, int64_t length) override;
  void fsync(int file, const std::string& path) override;
  void close(int file, const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  void unlink(const std::string& path) override;
  void mkdir(const std::string& path) override;
  void rmdir(const std::string& path) override;
  void fsync_dir(const std::string& path) override;
  std::vector<std::string> list(const std::string& path) override;
  std::optional<FileStat> stat(const std::string& path) override;

 private:
  struct PendingWrite {
    size_t offset;
    std::vector<std::byte> bytes;
  };
  struct Inode {
    bool is_directory = false;
    bool fsync_failed = false;
    std::vector<std::byte> bytes, durable_bytes;
    std::vector<PendingWrite> pending;
    std::map<std::string, int> entries, durable_entries;
  };
  // A change of names: takes `inode` away from (from_dir, from) and puts it at (to_dir, to); -1 for neither.
  struct NameChange {
    int from_dir = -1;
    std::string from = {};
    int to_dir = -1;
    std::string to = {};
    int inode = -1;
  };
  struct Place {
    int directory;
    std::string name;
    int inode;  // -1 when the name is free
  };

  // Counts the operation; throws when it is to fail.
  void enter(VfsOp op, const std::string& path);
  bool next_fsync_counts();
  Place resolve(VfsOp op, const std::string& path) const;
  int existing(VfsOp op, const std::string& path) const;
  int add_inode(bool is_directory);
  void change_names(NameChange change);
  void make_durable(const NameChange& change);
  int64_t used_bytes() const;
  static void write_after_crash(Inode& inode, CrashMode mode, std::mt19937_64& rng);

  std::map<int, Inode> inodes_;
  std::vector<NameChange> pending_changes_;
  std::map<int, int> open_files_;  // handle -> inode
  int next_inode_ = 0;
  int next_handle_ = 100;
  int64_t num_operations_ = 0;
  int64_t num_fsyncs_ = 0;
  int64_t num_fsyncs_after_failure_ = 0;
  int64_t fail_at_ = -1;
  int fail_errno_ = 0;
  Fault fault_ = Fault::Once;
  int64_t power_loss_at_ = -1;
  int64_t ignored_fsync_ = -1;
  bool fsync_lies_ = false;
  int64_t capacity_ = -1;
};

}  // namespace pleat::base
