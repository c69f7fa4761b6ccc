// Where the buffers lie that a group is exercised with (exercise.h): host memory, or that of the GPU whose stream the
// group's calls are enqueued on.
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace pleat::comm {

class ExerciseMemory {
 public:
  virtual ~ExerciseMemory() = default;
  virtual std::byte* allocate(int64_t bytes) = 0;  // lives as long as this
  // Done when they return, behind all calls made before.
  virtual void write(std::byte* to, const void* from, int64_t bytes) = 0;
  virtual void read(void* to, const std::byte* from, int64_t bytes) = 0;
  // Before the calls that are made next.
  virtual void copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  // Until the calls of the group that were made so far are done. Throws what a failed group has to say.
  virtual void wait(Communicator& group) = 0;
  // To open the group for; null for host memory.
  virtual void* stream() const = 0;
};

std::unique_ptr<ExerciseMemory> exercise_on_host();
std::unique_ptr<ExerciseMemory>
exercise_on_gpu();  // the one this process has chosen; throws where there is none

}  // namespace pleat::comm
