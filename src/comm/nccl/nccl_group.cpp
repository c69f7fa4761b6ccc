#include "comm/nccl/nccl_group.h"

#include <nccl.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "base/error.h"

namespace pleat::comm {
namespace {

static_assert(sizeof(ncclUniqueId) == sizeof(NcclId));

void require(ncclResult_t result, const std::string& what) {
  if (result != ncclSuccess)
    base::fail_with(base::ExitCode::Retry, "{}: {}", what, ncclGetErrorString(result));
}

ncclDataType_t type_of(tensor::Dtype dtype) {
  switch (dtype) {
    case tensor::Dtype::F32:
      return ncclFloat32;
    case tensor::Dtype::F64:
      return ncclFloat64;
    case tensor::Dtype::I32:
      return ncclInt32;
    case tensor::Dtype::I64:
      return ncclInt64;
    case tensor::Dtype::BF16:
      return ncclBfloat16;
    case tensor::Dtype::U8:
      break;
    case tensor::Dtype::I16:
      base::fail_with(base::ExitCode::Internal, "i16 elements are halves of floats and cannot be reduced");
  }
  return ncclUint8;
}

ncclRedOp_t op_of(Reduce reduce) {
  return reduce == Reduce::Sum ? ncclSum : reduce == Reduce::Max ? ncclMax : ncclMin;
}

class NcclGroup : public Communicator {
 public:
  NcclGroup(std::string name, std::vector<int> world_ranks, int rank, const NcclId& id, void* stream,
            RankFlight& flight)
      : Communicator(std::move(name), std::move(world_ranks), rank, flight),
        stream_(static_cast<cudaStream_t>(stream)) {
    ncclUniqueId unique;
    std::memcpy(&unique, id.data(), sizeof unique);
    require(ncclCommInitRank(&comm_, size(), unique, rank), "opening group '" + this->name() + "'");
    cudaError_t error = cudaMalloc(&token_, sizeof(int32_t));
    if (error == cudaSuccess) error = cudaMemset(token_, 0, sizeof(int32_t));
    if (error != cudaSuccess)
      base::fail_with(base::ExitCode::Hardware, "opening group '{}': {}", this->name(),
                      cudaGetErrorString(error));
  }
  ~NcclGroup() override {
    cudaFree(token_);
    // Not ncclCommDestroy: that waits for members, which may have failed.
    ncclCommAbort(comm_);
  }

 private:
  void execute(const Call& call) override {
    const std::string here =
        fmt::format("group '{}', {} #{} of stage '{}' on rank {}", name(), name_of(call.operation),
                    call.sequence, call.stage, world_ranks()[static_cast<size_t>(rank())]);
    require(ncclGroupStart(), here);
    const ncclResult_t enqueued = enqueue(call);
    const ncclResult_t ended = ncclGroupEnd();
    require(enqueued, here);
    require(ended, here);
    wait(here);
  }

  ncclResult_t enqueue(const Call& call) {
    const auto element = static_cast<size_t>(tensor::size_of(call.dtype));
    const auto n = static_cast<size_t>(size());
    // The first failure of a run of calls.
    ncclResult_t result = ncclSuccess;
    const auto note = [&](ncclResult_t one) {
      if (result == ncclSuccess) result = one;
    };
    switch (call.operation) {
      case Operation::AllReduce:
        return ncclAllReduce(call.in.data(), call.out.data(), call.in.size() / element, type_of(call.dtype),
                             op_of(call.reduce), comm_, stream_);
      case Operation::ReduceScatter:
        for (size_t r = 0; r < n; ++r)
          note(ncclReduce(call.in.data() + call.send.offsets[r], call.out.data(),
                          static_cast<size_t>(call.send.counts[r]) / element, type_of(call.dtype),
                          op_of(call.reduce), static_cast<int>(r), comm_, stream_));
        return result;
      case Operation::AllGather:
        for (size_t r = 0; r < n; ++r)
          note(ncclBroadcast(call.in.data(), call.out.data() + call.send.offsets[r],
                             static_cast<size_t>(call.send.counts[r]), ncclUint8, static_cast<int>(r), comm_,
                             stream_));
        return result;
      case Operation::AllToAll:
        for (size_t r = 0; r < n; ++r) {
          note(ncclSend(call.in.data() + call.send.offsets[r], static_cast<size_t>(call.send.counts[r]),
                        ncclUint8, static_cast<int>(r), comm_, stream_));
          note(ncclRecv(call.out.data() + call.receive.offsets[r],
                        static_cast<size_t>(call.receive.counts[r]), ncclUint8, static_cast<int>(r), comm_,
                        stream_));
        }
        return result;
      case Operation::Broadcast:
        return ncclBroadcast(call.in.data(), call.out.data(), call.out.size(), ncclUint8, call.peer, comm_,
                             stream_);
      case Operation::Barrier:
        return ncclAllReduce(token_, token_, 1, ncclInt32, ncclMax, comm_, stream_);
      case Operation::Send:
        return ncclSend(call.in.data(), call.in.size(), ncclUint8, call.peer, comm_, stream_);
      case Operation::Receive:
        return ncclRecv(call.out.data(), call.out.size(), ncclUint8, call.peer, comm_, stream_);
      case Operation::Shift:
      case Operation::SendReceive:
        note(ncclSend(call.in.data(), call.in.size(), ncclUint8, call.peer, comm_, stream_));
        note(ncclRecv(call.out.data(), call.out.size(), ncclUint8, call.from, comm_, stream_));
        return result;
    }
    return ncclInvalidArgument;
  }

  // A failed peer shows as an error of the communicator, never of the stream: both are asked.
  void wait(const std::string& here) {
    for (;;) {
      const cudaError_t stream = cudaStreamQuery(stream_);
      if (stream == cudaSuccess) return;
      if (stream != cudaErrorNotReady)
        base::fail_with(base::ExitCode::Hardware, "{}: {}", here, cudaGetErrorString(stream));
      ncclResult_t asynchronous = ncclSuccess;
      require(ncclCommGetAsyncError(comm_, &asynchronous), here);
      require(asynchronous, here);
      std::this_thread::sleep_for(std::chrono::microseconds(5));
    }
  }

  cudaStream_t stream_;
  ncclComm_t comm_ = nullptr;
  void* token_ = nullptr;
};

}  // namespace

bool nccl_is_built_in() { return true; }

std::string nccl_description() {
  int version = 0;
  require(ncclGetVersion(&version), "ncclGetVersion");
  return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

NcclId make_nccl_id() {
  ncclUniqueId unique;
  require(ncclGetUniqueId(&unique), "ncclGetUniqueId");
  NcclId id;
  std::memcpy(id.data(), &unique, sizeof unique);
  return id;
}

std::unique_ptr<Communicator> make_nccl_group(std::string name, std::vector<int> world_ranks, int rank,
                                              const NcclId& id, void* stream, RankFlight& flight) {
  return std::make_unique<NcclGroup>(std::move(name), std::move(world_ranks), rank, id, stream, flight);
}

}  // namespace pleat::comm
