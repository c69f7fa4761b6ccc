// Memory that the processes of one machine share, and that is gone with the last of them.
#pragma once

#include <cstddef>
#include <string>

namespace pleat::comm::tcp {

class SharedMemory {
 public:
  enum class Make : bool { No, Yes };
  // Makes it, filled with zeroes, or finds what another process made. Throws (Retry).
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
  void* data_ = nullptr;
};

}  // namespace pleat::comm::tcp
