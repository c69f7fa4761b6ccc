// Marks on a stream, counted as the device passes them: how far it is can be read at any time, also while a
// captured graph runs, where no event says so.
#pragma once

#include <cstdint>
#include <string>

struct CUstream_st;  // cudaStream_t is a pointer to one

namespace pleat::comm::nccl {

class Marks {
 public:
  explicit Marks(const std::string& what);  // what is made, for errors
  ~Marks();
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;

  void put(CUstream_st* stream, const std::string& what);
  uint64_t num_passed() const;
  void* token() const { return token_; }  // four bytes of device memory, zero

 private:
  uint64_t* count_ = nullptr;          // on the device: a stream's marks add one after the other
  volatile uint64_t* seen_ = nullptr;  // the same on the host
  void* token_ = nullptr;
};

}  // namespace pleat::comm::nccl
