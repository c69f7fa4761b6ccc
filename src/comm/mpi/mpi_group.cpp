#include "comm/mpi/mpi_group.h"

#include <algorithm>
#include <climits>
#include <cstring>

#include "base/error.h"

namespace pleat::comm::mpi {
namespace {

MPI_Datatype type_of(tensor::Dtype dtype) {
  switch (dtype) {
    case tensor::Dtype::F32:
      return MPI_FLOAT;
    case tensor::Dtype::F64:
      return MPI_DOUBLE;
    case tensor::Dtype::I32:
      return MPI_INT32_T;
    case tensor::Dtype::I64:
      return MPI_INT64_T;
    case tensor::Dtype::U8:
    case tensor::Dtype::BF16:
    case tensor::Dtype::I16:
    case tensor::Dtype::E4M3:
    case tensor::Dtype::E8M0:
    case tensor::Dtype::E2M1:
      break;
  }
  return MPI_UINT8_T;
}

MPI_Op op_of(Reduce reduce) {
  return reduce == Reduce::Sum ? MPI_SUM : reduce == Reduce::Max ? MPI_MAX : MPI_MIN;
}

int as_int(int64_t count) {
  if (count > INT_MAX)
    base::fail("MPI's own reductions take up to {} elements, got {}; leave comm.mpi_native off", INT_MAX,
               count);
  return static_cast<int>(count);
}

}  // namespace

GroupEnd::GroupEnd(Library& library, MPI_Comm comm, std::string name, std::vector<int> world_ranks, int rank,
                   RankFlight& flight, const Options& options)
    : MessageGroup(std::move(name), std::move(world_ranks), rank, flight, options),
      library_(library),
      comm_(comm),
      native_(options.mpi_native) {}

// Not MPI_Comm_free: it may wait for members that have failed. The few a run makes end with the library.
GroupEnd::~GroupEnd() = default;

void GroupEnd::abort(const std::string& why) {
  Communicator::abort(why);
  library_.call_off();
}

std::unique_ptr<comm::Exchange> GroupEnd::exchange(std::string here) {
  return std::make_unique<Exchange>(library_, comm_, world_ranks(), std::move(here));
}

void GroupEnd::execute(const Call& call) {
  const bool reduces = call.operation == Operation::AllReduce || call.operation == Operation::ReduceScatter;
  if (!native_ || !reduces) return MessageGroup::execute(call);
  if (checks()) compare(call);
  native_reduction(call);
}

void GroupEnd::native_reduction(const Call& call) {
  const int64_t element = tensor::size_of(call.dtype);
  const auto x = MessageGroup::exchange(call);
  MPI_Request request;
  if (call.operation == Operation::AllReduce) {
    const int count = as_int(static_cast<int64_t>(call.in.size()) / element);
    const void* in = call.in.data() == call.out.data() ? MPI_IN_PLACE : call.in.data();
    {
      const auto lock = library_.guard();
      require(MPI_Iallreduce(in, call.out.data(), count, type_of(call.dtype), op_of(call.reduce), comm_,
                             &request),
              "MPI_Iallreduce");
    }
    static_cast<Exchange&>(*x).add(request);
    return x->wait();
  }
  std::vector<int> counts;
  for (const int64_t bytes : call.send.counts) counts.push_back(as_int(bytes / element));
  // MPI does not allow the result inside the input.
  if (scratch_.size() < call.out.size()) scratch_.resize(call.out.size());
  {
    const auto lock = library_.guard();
    require(MPI_Ireduce_scatter(call.in.data(), scratch_.data(), counts.data(), type_of(call.dtype),
                                op_of(call.reduce), comm_, &request),
            "MPI_Ireduce_scatter");
  }
  static_cast<Exchange&>(*x).add(request);
  x->wait();
  if (!call.out.empty()) std::memcpy(call.out.data(), scratch_.data(), call.out.size());
}

}  // namespace pleat::comm::mpi
