#include "comm/tcp/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace pleat::comm::tcp {

SharedMemory::SharedMemory(const std::string& name, size_t bytes, Make make) : name_(name), bytes_(bytes) {
  const int flags = O_RDWR | (make == Make::Yes ? O_CREAT | O_EXCL : 0);
  const int file = ::shm_open(name_.c_str(), flags, 0600);
  const auto fail = [&](const char* what) {
    const int error = errno;
    if (file >= 0) ::close(file);
    forget_name();
    base::fail_with(base::ExitCode::Retry, "{} bytes of memory for the ranks of this machine: {}: {}", bytes,
                    what, std::strerror(error));
  };
  if (file < 0) fail("shm_open");
  named_ = make == Make::Yes;
  if (make == Make::Yes && ::ftruncate(file, static_cast<off_t>(bytes)) != 0) fail("ftruncate");
  data_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (data_ == MAP_FAILED) fail("mmap");
  ::close(file);
}

SharedMemory::~SharedMemory() {
  forget_name();
  (void)::munmap(data_, bytes_);
}

void SharedMemory::forget_name() {
  if (named_) (void)::shm_unlink(name_.c_str());
  named_ = false;
}

}  // namespace pleat::comm::tcp
