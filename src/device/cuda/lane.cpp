#include <cublasLt.h>
#include <cudnn.h>

#include <utility>

#include "device/cuda/check.h"
#include "device/cuda/chosen.h"
#include "device/cuda/cuda.h"
#include "device/cuda/pieces.h"
#include "device/cuda/query.h"

namespace pleat::device::cuda {

Event::Event(bool timing) {
  cudaEvent_t event = nullptr;
  PLEAT_CUDA(cudaEventCreateWithFlags(&event, timing ? cudaEventDefault : cudaEventDisableTiming));
  handle_ = event;
}
Event::~Event() {
  if (handle_) (void)cudaEventDestroy(static_cast<cudaEvent_t>(handle_));
}
Event::Event(Event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}

double Event::milliseconds(const Event& from, const Event& to) {
  const auto later = static_cast<cudaEvent_t>(to.handle_);
  if (const cudaError_t state = cudaEventQuery(later); state == cudaErrorNotReady) {
    (void)cudaGetLastError();  // nothing is wrong
    PLEAT_CUDA(cudaEventSynchronize(later));
  } else {
    PLEAT_CUDA(state);
  }
  float ms = 0;
  PLEAT_CUDA(cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(from.handle_), later));
  return ms;
}

Lane::Lane() {
  enter_device();
  PLEAT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

Lane::~Lane() {
  if (cublas_) (void)cublasLtDestroy(static_cast<cublasLtHandle_t>(cublas_));
  if (cudnn_) (void)cudnnDestroy(static_cast<cudnnHandle_t>(cudnn_));
  (void)cudaStreamDestroy(stream_);
}

void Lane::record(Event& event) {
  PLEAT_CUDA(cudaEventRecord(static_cast<cudaEvent_t>(event.handle()), stream_));
}
void Lane::wait(const Event& event) {
  PLEAT_CUDA(cudaStreamWaitEvent(stream_, static_cast<cudaEvent_t>(event.handle()), 0));
}
void Lane::synchronize() { PLEAT_CUDA(cudaStreamSynchronize(stream_)); }

bool is_done(const Lane& lane) {
  const cudaError_t state = cudaStreamQuery(lane.stream());
  if (state == cudaErrorNotReady) {
    (void)cudaGetLastError();  // nothing is wrong
    return false;
  }
  PLEAT_CUDA(state);
  return true;
}

void Lane::copy_in(void* device, const void* host, int64_t bytes) {
  for_each_piece(
      static_cast<std::byte*>(device), static_cast<const std::byte*>(host), bytes,
      [&](std::byte* to, const std::byte* from, int64_t count) {
        PLEAT_CUDA(cudaMemcpyAsync(to, from, static_cast<size_t>(count), cudaMemcpyHostToDevice, stream_));
      });
}
void Lane::copy_out(void* host, const void* device, int64_t bytes) {
  for_each_piece(
      static_cast<std::byte*>(host), static_cast<const std::byte*>(device), bytes,
      [&](std::byte* to, const std::byte* from, int64_t count) {
        PLEAT_CUDA(cudaMemcpyAsync(to, from, static_cast<size_t>(count), cudaMemcpyDefault, stream_));
      });
}
void Lane::copy(void* to, const void* from, int64_t bytes) {
  if (bytes > 0)
    PLEAT_CUDA(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream_));
}
void Lane::fill(void* device, int byte, int64_t bytes) {
  for_each_piece(static_cast<std::byte*>(device), static_cast<const std::byte*>(device), bytes,
                 [&](std::byte* to, const std::byte*, int64_t count) {
                   PLEAT_CUDA(cudaMemsetAsync(to, byte, static_cast<size_t>(count), stream_));
                 });
}

void* Lane::cublas() {
  if (!cublas_) {
    cublasLtHandle_t handle = nullptr;
    if (const cublasStatus_t code = cublasLtCreate(&handle); code != CUBLAS_STATUS_SUCCESS)
      base::fail_with(base::ExitCode::Hardware, "cublasLtCreate: {}", cublasLtGetStatusName(code));
    cublas_ = handle;
  }
  return cublas_;
}

void* Lane::cudnn() {
  if (!cudnn_) {
    cudnnHandle_t handle = nullptr;
    cudnnStatus_t code = cudnnCreate(&handle);
    if (code == CUDNN_STATUS_SUCCESS) code = cudnnSetStream(handle, stream_);
    if (code != CUDNN_STATUS_SUCCESS)
      base::fail_with(base::ExitCode::Hardware, "cudnnCreate: {}", cudnnGetErrorString(code));
    cudnn_ = handle;
  }
  return cudnn_;
}

}  // namespace pleat::device::cuda
