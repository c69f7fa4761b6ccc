#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "comm/enqueued.h"
#include "comm/nccl/cuda/marks.h"
#include "comm/nccl/group_end.h"
#include "comm/nccl/library.h"
#include "comm/nccl/memory_meter.h"

namespace pleat::comm::nccl {
namespace {

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
    case tensor::Dtype::E4M3:
    case tensor::Dtype::E8M0:
    case tensor::Dtype::E2M1:
      base::fail_with(base::ExitCode::Internal,
                      "{} elements are no numbers by themselves and cannot be reduced",
                      tensor::name_of(dtype));
  }
  return ncclUint8;
}

ncclRedOp_t op_of(Reduce reduce) {
  return reduce == Reduce::Sum ? ncclSum : reduce == Reduce::Max ? ncclMax : ncclMin;
}

bool equal(Parts parts) {
  return std::all_of(parts.counts.begin(), parts.counts.end(),
                     [&](int64_t count) { return count == parts.counts.front(); });
}

class NcclGroup : public EnqueuedCommunicator {
 public:
  NcclGroup(const NcclWorld::Group& group, ncclComm_t comm, int64_t taken, RankFlight& flight,
            const Inject& inject, std::unique_ptr<Communicator> host)
      : EnqueuedCommunicator(group.name, group.world_ranks, group.rank, flight, inject),
        stream_(static_cast<cudaStream_t>(group.stream)),
        comm_(comm),
        memory_(taken) {
    compare_over(std::move(host));
    try {
      marks_ = std::make_unique<Marks>("opening group '" + name() + "'");
    } catch (...) {
      end();  // a destructor that will not be called
      throw;
    }
  }
  // Not ncclCommDestroy: that waits for members, which may have failed.
  ~NcclGroup() override { end(); }

  void abort(const std::string& why) override {
    Communicator::abort(why);
    end();
  }

  int64_t device_bytes() const override { return memory_.taken(); }

 private:
  void execute(const Call& call) override {
    const std::string here =
        fmt::format("group '{}', {} #{} of stage '{}' on rank {}", name(), name_of(call.operation),
                    call.sequence, call.stage, world_ranks()[static_cast<size_t>(rank())]);
    if (!comm_) base::fail_with(base::ExitCode::Retry, "{}: the group has failed before", here);
    if (!capturing()) memory_.before(call);
    if (together_) {
      require(enqueue(call), here);
      ++num_together_;
      return;
    }
    require(ncclGroupStart(), here);
    const ncclResult_t enqueued = enqueue(call);
    const ncclResult_t ended = end_group();
    require(enqueued, here);
    require(ended, here);
    memory_.after();
    marks_->put(stream_, here);
  }

  void begin_messages() override {
    require(ncclGroupStart(), "group '" + name() + "', several messages");
    together_ = true;
    num_together_ = 0;
  }
  void end_messages() override {
    const std::string here = "group '" + name() + "', several messages";
    together_ = false;
    require(end_group(), here);
    memory_.after();
    for (; num_together_ > 0; --num_together_) marks_->put(stream_, here);
  }

  // Groups block until their calls stand on the stream (nccl_group.h), unless the environment says otherwise
  // (NCCL_COMM_BLOCKING=0): then that is waited for here, before a mark is put behind them.
  ncclResult_t end_group() {
    const ncclComm_t comm = comm_;
    const ncclResult_t ended = ncclGroupEnd();
    return comm ? settled(comm, ended) : ended;
  }

  uint64_t num_done() const override { return marks_->num_passed(); }
  bool capturing() const override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(stream_, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone;
  }

  // A failed peer shows as an error of the communicator, never of the stream: both are asked.
  std::string fault() override {
    const ncclComm_t comm = comm_;
    if (!comm) return "the group was ended";
    ncclResult_t asynchronous = ncclSuccess;
    ncclResult_t result = ncclCommGetAsyncError(comm, &asynchronous);
    if (result == ncclSuccess) result = asynchronous;
    std::string why;
    if (result != ncclSuccess && result != ncclInProgress) {
      why = ncclGetErrorString(result);
    } else if (const cudaError_t stream = cudaStreamQuery(stream_);
               stream != cudaSuccess && stream != cudaErrorNotReady) {
      why = cudaGetErrorString(stream);
    }
    (void)cudaGetLastError();  // a stream that is not ready is none
    if (!why.empty()) end();
    return why;
  }

  // Kernels that wait for others look up and leave, so that memory can be freed and the process can go.
  void end() {
    const ncclComm_t comm = comm_.exchange(nullptr);
    if (comm) ncclCommAbort(comm);
  }

  ncclResult_t enqueue(const Call& call) {
    const auto element = static_cast<size_t>(tensor::size_of(call.dtype));
    const auto n = static_cast<size_t>(size());
    const ncclComm_t comm = comm_;
    // The first failure of a run of calls.
    ncclResult_t result = ncclSuccess;
    const auto note = [&](ncclResult_t one) {
      if (result == ncclSuccess) result = one;
    };
    switch (call.operation) {
      case Operation::AllReduce:
        return ncclAllReduce(call.in.data(), call.out.data(), call.in.size() / element, type_of(call.dtype),
                             op_of(call.reduce), comm, stream_);
      case Operation::ReduceScatter:
        if (equal(call.send))
          return ncclReduceScatter(call.in.data(), call.out.data(), call.out.size() / element,
                                   type_of(call.dtype), op_of(call.reduce), comm, stream_);
        for (size_t r = 0; r < n; ++r)
          note(ncclReduce(call.in.data() + call.send.offsets[r], call.out.data(),
                          static_cast<size_t>(call.send.counts[r]) / element, type_of(call.dtype),
                          op_of(call.reduce), static_cast<int>(r), comm, stream_));
        return result;
      case Operation::AllGather:
        if (equal(call.send))
          return ncclAllGather(call.in.data(), call.out.data(), call.in.size(), ncclUint8, comm, stream_);
        for (size_t r = 0; r < n; ++r)
          note(ncclBroadcast(call.in.data(), call.out.data() + call.send.offsets[r],
                             static_cast<size_t>(call.send.counts[r]), ncclUint8, static_cast<int>(r), comm,
                             stream_));
        return result;
      case Operation::AllToAll:
        for (size_t r = 0; r < n; ++r) {
          note(ncclSend(call.in.data() + call.send.offsets[r], static_cast<size_t>(call.send.counts[r]),
                        ncclUint8, static_cast<int>(r), comm, stream_));
          note(ncclRecv(call.out.data() + call.receive.offsets[r],
                        static_cast<size_t>(call.receive.counts[r]), ncclUint8, static_cast<int>(r), comm,
                        stream_));
        }
        return result;
      case Operation::Broadcast:
        return ncclBroadcast(call.in.data(), call.out.data(), call.out.size(), ncclUint8, call.peer, comm,
                             stream_);
      case Operation::Barrier:
        return ncclAllReduce(marks_->token(), marks_->token(), 1, ncclInt32, ncclMax, comm, stream_);
      case Operation::Send:
        return ncclSend(call.in.data(), call.in.size(), ncclUint8, call.peer, comm, stream_);
      case Operation::Receive:
        return ncclRecv(call.out.data(), call.out.size(), ncclUint8, call.peer, comm, stream_);
      case Operation::Shift:
      case Operation::SendReceive:
        note(ncclSend(call.in.data(), call.in.size(), ncclUint8, call.peer, comm, stream_));
        note(ncclRecv(call.out.data(), call.out.size(), ncclUint8, call.from, comm, stream_));
        return result;
    }
    return ncclInvalidArgument;
  }

  cudaStream_t stream_;
  bool together_ = false;  // messages are being collected
  int num_together_ = 0;
  std::atomic<ncclComm_t> comm_;
  MemoryMeter memory_;
  std::unique_ptr<Marks> marks_;
};

}  // namespace

std::unique_ptr<Communicator> make_group_end(const NcclWorld::Group& group, ncclComm_t comm, int64_t taken,
                                             RankFlight& flight, const Inject& inject,
                                             std::unique_ptr<Communicator> host) {
  return std::make_unique<NcclGroup>(group, comm, taken, flight, inject, std::move(host));
}

}  // namespace pleat::comm::nccl
