#include "base/sim_vfs.h"

#include <algorithm>
#include <cerrno>
#include <functional>

namespace pleat::base {

namespace {

bool coin(std::mt19937_64& rng) { return (rng() >> 17) & 1; }

std::vector<std::string> split(const std::string& path) {
  std::vector<std::string> parts;
  size_t at = 0;
  while (at <= path.size()) {
    const size_t slash = std::min(path.find('/', at), path.size());
    std::string part = path.substr(at, slash - at);
    if (!part.empty() && part != ".") parts.push_back(std::move(part));
    at = slash + 1;
  }
  return parts;
}

void put(std::vector<std::byte>& file, size_t offset, std::span<const std::byte> bytes) {
  if (file.size() < offset + bytes.size()) file.resize(offset + bytes.size());
  std::copy(bytes.begin(), bytes.end(), file.begin() + static_cast<std::ptrdiff_t>(offset));
}

}  // namespace

SimVfs::SimVfs() { add_inode(true); }

void SimVfs::reset_faults() {
  num_operations_ = num_fsyncs_ = 0;
  fail_at_ = power_loss_at_ = ignored_fsync_ = capacity_ = -1;
  fsync_lies_ = false;
}

void SimVfs::fail_at(int64_t operation, int error_number, Fault fault) {
  fail_at_ = operation;
  fail_errno_ = error_number;
  fault_ = fault;
}

void SimVfs::enter(VfsOp op, const std::string& path) {
  const int64_t number = num_operations_++;
  if (power_loss_at_ >= 0 && number >= power_loss_at_) throw PowerLoss{};
  if (fail_at_ >= 0 && (number == fail_at_ || (number > fail_at_ && fault_ == Fault::Forever)))
    throw VfsError(op, path, fail_errno_);
}

bool SimVfs::next_fsync_counts() { return num_fsyncs_++ != ignored_fsync_ && !fsync_lies_; }

SimVfs::Place SimVfs::resolve(VfsOp op, const std::string& path) const {
  const std::vector<std::string> parts = split(path);
  Place place{-1, "", 0};
  for (const std::string& part : parts) {
    if (place.inode < 0) throw VfsError(op, path, ENOENT);
    const Inode& directory = inodes_.at(place.inode);
    if (!directory.is_directory) throw VfsError(op, path, ENOTDIR);
    const auto found = directory.entries.find(part);
    place = {place.inode, part, found == directory.entries.end() ? -1 : found->second};
  }
  return place;
}

int SimVfs::existing(VfsOp op, const std::string& path) const {
  const Place place = resolve(op, path);
  if (place.inode < 0) throw VfsError(op, path, ENOENT);
  return place.inode;
}

int SimVfs::add_inode(bool is_directory) {
  inodes_[next_inode_].is_directory = is_directory;
  return next_inode_++;
}

void SimVfs::change_names(NameChange change) {
  if (change.from_dir >= 0) inodes_.at(change.from_dir).entries.erase(change.from);
  if (change.to_dir >= 0) inodes_.at(change.to_dir).entries[change.to] = change.inode;
  pending_changes_.push_back(std::move(change));
}

void SimVfs::make_durable(const NameChange& change) {
  // By inode and not by name: the inode has one name, even if the change that gave the old one was lost.
  if (change.from_dir >= 0)
    std::erase_if(inodes_.at(change.from_dir).durable_entries,
                  [&](const auto& entry) { return entry.second == change.inode; });
  if (change.to_dir >= 0) inodes_.at(change.to_dir).durable_entries[change.to] = change.inode;
}

int64_t SimVfs::used_bytes() const {
  int64_t total = 0;
  const std::function<void(int)> visit = [&](int inode_idx) {
    const Inode& inode = inodes_.at(inode_idx);
    total += static_cast<int64_t>(inode.bytes.size());
    for (const auto& [name, child] : inode.entries) visit(child);
  };
  visit(0);
  return total;
}

int SimVfs::open_read(const std::string& path) {
  enter(VfsOp::OpenRead, path);
  const int inode = existing(VfsOp::OpenRead, path);
  if (inodes_.at(inode).is_directory) throw VfsError(VfsOp::OpenRead, path, EISDIR);
  open_files_[next_handle_] = inode;
  return next_handle_++;
}

int SimVfs::create(const std::string& path) {
  enter(VfsOp::Create, path);
  const Place place = resolve(VfsOp::Create, path);
  if (place.inode >= 0) throw VfsError(VfsOp::Create, path, EEXIST);
  const int inode = add_inode(false);
  change_names({.to_dir = place.directory, .to = place.name, .inode = inode});
  open_files_[next_handle_] = inode;
  return next_handle_++;
}

void SimVfs::write(int file, const std::string& path, std::span<const std::byte> bytes) {
  Inode& inode = inodes_.at(open_files_.at(file));
  const auto append = [&](size_t count) {
    const std::span<const std::byte> part = bytes.first(count);
    const size_t offset = inode.bytes.size();
    put(inode.bytes, offset, part);
    inode.pending.push_back({offset, {part.begin(), part.end()}});
  };
  try {
    enter(VfsOp::Write, path);
  } catch (const VfsError&) {
    append(bytes.size() / 2);
    throw;
  }
  const int64_t room = capacity_ < 0 ? INT64_MAX : std::max<int64_t>(0, capacity_ - used_bytes());
  if (static_cast<int64_t>(bytes.size()) > room) {
    append(static_cast<size_t>(room));
    throw VfsError(VfsOp::Write, path, ENOSPC);
  }
  append(bytes.size());
}

size_t SimVfs::pread(int file, const std::string& path, std::span<std::byte> out, int64_t offset) {
  enter(VfsOp::Pread, path);
  const std::vector<std::byte>& bytes = inodes_.at(open_files_.at(file)).bytes;
  if (static_cast<size_t>(offset) >= bytes.size()) return 0;
  const size_t count = std::min(out.size(), bytes.size() - static_cast<size_t>(offset));
  std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), count, out.begin());
  return count;
}

void SimVfs::preallocate(int file, const std::string& path, int64_t length) {
  enter(VfsOp::Preallocate, path);
  const auto have = static_cast<int64_t>(inodes_.at(open_files_.at(file)).bytes.size());
  // Half the space is promised and then not there, as on disks that fill up under another writer.
  if (capacity_ >= 0 && used_bytes() + (length - have) / 2 > capacity_)
    throw VfsError(VfsOp::Preallocate, path, ENOSPC);
}

void SimVfs::fsync(int file, const std::string& path) {
  Inode& inode = inodes_.at(open_files_.at(file));
  if (inode.fsync_failed) ++num_fsyncs_after_failure_;
  try {
    enter(VfsOp::Fsync, path);
  } catch (const VfsError&) {
    inode.fsync_failed = true;
    inode.pending.clear();
    throw;
  }
  if (!next_fsync_counts()) return;
  for (const PendingWrite& write : inode.pending) put(inode.durable_bytes, write.offset, write.bytes);
  inode.pending.clear();
}

void SimVfs::close(int file, const std::string& path) {
  open_files_.erase(file);
  enter(VfsOp::Close, path);
}

void SimVfs::rename(const std::string& from, const std::string& to) {
  enter(VfsOp::Rename, from + "' to '" + to);
  const Place source = resolve(VfsOp::Rename, from);
  if (source.inode < 0) throw VfsError(VfsOp::Rename, from, ENOENT);
  const Place target = resolve(VfsOp::Rename, to);
  if (target.inode >= 0) {
    const Inode& replaced = inodes_.at(target.inode);
    const bool is_directory = inodes_.at(source.inode).is_directory;
    if (replaced.is_directory != is_directory)
      throw VfsError(VfsOp::Rename, to, is_directory ? ENOTDIR : EISDIR);
    if (!replaced.entries.empty()) throw VfsError(VfsOp::Rename, to, ENOTEMPTY);
  }
  change_names({source.directory, source.name, target.directory, target.name, source.inode});
}

void SimVfs::unlink(const std::string& path) {
  enter(VfsOp::Unlink, path);
  const Place place = resolve(VfsOp::Unlink, path);
  if (place.inode < 0) throw VfsError(VfsOp::Unlink, path, ENOENT);
  if (inodes_.at(place.inode).is_directory) throw VfsError(VfsOp::Unlink, path, EISDIR);
  change_names({.from_dir = place.directory, .from = place.name, .inode = place.inode});
}

void SimVfs::mkdir(const std::string& path) {
  enter(VfsOp::Mkdir, path);
  const Place place = resolve(VfsOp::Mkdir, path);
  if (place.inode >= 0) throw VfsError(VfsOp::Mkdir, path, EEXIST);
  change_names({.to_dir = place.directory, .to = place.name, .inode = add_inode(true)});
}

void SimVfs::rmdir(const std::string& path) {
  enter(VfsOp::Rmdir, path);
  const Place place = resolve(VfsOp::Rmdir, path);
  if (place.inode < 0) throw VfsError(VfsOp::Rmdir, path, ENOENT);
  if (!inodes_.at(place.inode).is_directory) throw VfsError(VfsOp::Rmdir, path, ENOTDIR);
  if (!inodes_.at(place.inode).entries.empty()) throw VfsError(VfsOp::Rmdir, path, ENOTEMPTY);
  change_names({.from_dir = place.directory, .from = place.name, .inode = place.inode});
}

void SimVfs::fsync_dir(const std::string& path) {
  const auto touches = [](int directory, const NameChange& change) {
    return change.from_dir == directory || change.to_dir == directory;
  };
  enter(VfsOp::FsyncDir, path);
  const int directory = existing(VfsOp::FsyncDir, path);
  if (!next_fsync_counts()) return;
  for (const NameChange& change : pending_changes_)
    if (touches(directory, change)) make_durable(change);
  std::erase_if(pending_changes_, [&](const NameChange& change) { return touches(directory, change); });
}

std::vector<std::string> SimVfs::list(const std::string& path) {
  enter(VfsOp::List, path);
  const Inode& inode = inodes_.at(existing(VfsOp::List, path));
  if (!inode.is_directory) throw VfsError(VfsOp::List, path, ENOTDIR);
  std::vector<std::string> names;
  for (const auto& [name, child] : inode.entries) names.push_back(name);
  return names;
}

std::optional<FileStat> SimVfs::stat(const std::string& path) {
  enter(VfsOp::Stat, path);
  const Place place = resolve(VfsOp::Stat, path);
  if (place.inode < 0) return std::nullopt;
  const Inode& inode = inodes_.at(place.inode);
  return FileStat{inode.is_directory ? FileKind::Directory : FileKind::Regular,
                  static_cast<int64_t>(inode.bytes.size())};
}

void SimVfs::write_after_crash(Inode& inode, CrashMode mode, std::mt19937_64& rng) {
  if (inode.pending.empty() || mode == CrashMode::DropAll) return;
  std::vector<std::byte>& file = inode.durable_bytes;
  size_t end = file.size();
  for (const PendingWrite& write : inode.pending) {
    end = std::max(end, write.offset + write.bytes.size());
    if (mode == CrashMode::KeepAll) {
      put(file, write.offset, write.bytes);
      continue;
    }
    const size_t sector = mode == CrashMode::Tear512    ? 512
                          : mode == CrashMode::Tear4096 ? 4096
                                                        : write.offset + write.bytes.size();
    const std::span<const std::byte> bytes = write.bytes;
    for (size_t done = 0; done < bytes.size();) {
      const size_t at = write.offset + done;
      const size_t count = std::min(bytes.size() - done, sector - at % sector);
      if (coin(rng)) put(file, at, bytes.subspan(done, count));
      done += count;
    }
  }
  // The new length may be on the disk before the bytes are; what is read there is old garbage or zeros.
  if (mode != CrashMode::KeepAll && coin(rng)) file.resize(end, coin(rng) ? std::byte{0xA5} : std::byte{0});
}

void SimVfs::crash(CrashMode mode, std::mt19937_64& rng) {
  if (mode == CrashMode::Prefix) pending_changes_.resize(rng() % (pending_changes_.size() + 1));
  for (const NameChange& change : pending_changes_) {
    const bool keep =
        mode == CrashMode::KeepAll || mode == CrashMode::Prefix || (mode != CrashMode::DropAll && coin(rng));
    if (keep) make_durable(change);
  }
  pending_changes_.clear();
  open_files_.clear();
  for (auto& [number, inode] : inodes_) {
    write_after_crash(inode, mode, rng);
    inode.pending.clear();
    inode.fsync_failed = false;
    inode.bytes = inode.durable_bytes;
    inode.entries = inode.durable_entries;
  }
  reset_faults();
}

std::vector<std::byte> SimVfs::contents(const std::string& path) const {
  return inodes_.at(existing(VfsOp::OpenRead, path)).bytes;
}

void SimVfs::set_contents(const std::string& path, std::vector<std::byte> bytes) {
  Inode& inode = inodes_.at(existing(VfsOp::OpenRead, path));
  inode.pending.clear();
  inode.durable_bytes = bytes;
  inode.bytes = std::move(bytes);
}

}  // namespace pleat::base
