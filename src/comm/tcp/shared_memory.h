// Memory that the processes of one machine share, and that is gone with the last of them.
#pragma once

#include <cstddef>
#include <string>

namespace pleat::comm::tcp {

class SharedMemory {
 public:
  enum class Make : bool { No, Yes };
  // Makes it, filled with zeroes, or finds what another process made. Throws (Retry). Who makes it takes its name away
  // again at the latest with this, so that a start that fails leaves nothing behind.
  SharedMemory(const std::string& name, size_t bytes, Make make);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  void* data() const { return data_; }
  // When all have found it: nobody else shall, and nothing stays behind.
  void forget_name();

 private:
  std::string name_;
  size_t bytes_;
  bool named_ = false;  // by this process
  void* data_ = nullptr;
};

}  // namespace pleat::comm::tcp
