#include "device/cuda/check.h"
#include "device/cuda/cuda.h"

namespace pleat::device::cuda {

Graph::~Graph() {
  if (handle_) (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(handle_));
}

void Graph::capture(Lane& origin, const std::function<void()>& enqueue) {
  PLEAT_CHECK(!handle_, "a graph is captured once");
  // Other lanes join through events that `enqueue` records and waits for.
  PLEAT_CUDA(cudaStreamBeginCapture(origin.stream(), cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    enqueue();
  } catch (...) {
    (void)cudaStreamEndCapture(origin.stream(), &graph);
    if (graph) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    throw;
  }
  PLEAT_CUDA(cudaStreamEndCapture(origin.stream(), &graph));
  size_t nodes = 0;
  (void)cudaGraphGetNodes(graph, nullptr, &nodes);
  num_nodes_ = static_cast<int64_t>(nodes);
  cudaGraphExec_t ready = nullptr;
  const cudaError_t code = cudaGraphInstantiate(&ready, graph, 0);
  (void)cudaGraphDestroy(graph);
  PLEAT_CUDA(code);
  handle_ = ready;
}

void Graph::launch(Lane& lane) {
  PLEAT_CUDA(cudaGraphLaunch(static_cast<cudaGraphExec_t>(handle_), lane.stream()));
}

}  // namespace pleat::device::cuda
