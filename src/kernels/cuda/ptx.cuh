// The Hopper instructions behind the kernels: barriers in shared memory, bulk copies, clusters.
// One function per instruction; the names say what they wait for. PTX ISA 8.x, sections "mbarrier",
// "cp.async.bulk", "cp.async.bulk.tensor".
#pragma once

#include <cuda.h>

#include <cstdint>

namespace pleat::kernels::cuda {

__device__ inline uint32_t shared_address(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

// ---- mbarrier: a phase ends when all arrivals have come and all announced bytes have landed.

__device__ inline void barrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}
// Makes the initialised barriers visible to the copy engine and to the other blocks of the cluster.
__device__ inline void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ inline void barrier_arrive_times(uint64_t* barrier, int times) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(times)
               : "memory");
}
__device__ inline void barrier_arrive_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
// At the same barrier of block `block` of the cluster. Orders what the copy engine and the tensor cores do,
// not ordinary accesses across blocks: a release at cluster scope would cost a fence of the whole device in
// every step.
__device__ inline void barrier_arrive_at(uint64_t* barrier, int block) {
  asm volatile(
      "{\n .reg .b32 remote;\n mapa.shared::cluster.u32 remote, %0, %1;\n"
      " mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(shared_address(barrier)),
      "r"(block)
      : "memory");
}
// Stores 16 bytes at the same place of block `block` of the cluster, and announces them to the same barrier
// there as bytes that have landed. Who waits for the barrier with barrier_wait_cluster sees them; nobody
// needs a fence. Only for launches of clusters: in one without, to the own block, a kernel that used it
// failed.
__device__ inline void store_at(void* to, uint64_t a, uint64_t b, uint64_t* barrier, int block) {
  asm volatile(
      "{\n .reg .b32 place, remote;\n mapa.shared::cluster.u32 place, %0, %4;\n"
      " mapa.shared::cluster.u32 remote, %3, %4;\n"
      " st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [place], {%1, %2}, [remote];\n}" ::
          "r"(shared_address(to)),
      "l"(a), "l"(b), "r"(shared_address(barrier)), "r"(block)
      : "memory");
}
__device__ inline void barrier_wait_cluster(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n .reg .pred done;\n again:\n"
      " mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      " @done bra finished;\n bra again;\n finished:\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
__device__ inline void barrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n .reg .pred done;\n again:\n mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      " @done bra finished;\n bra again;\n finished:\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
// ---- Bulk tensor copies. Coordinates: innermost dimension first.

__device__ inline void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
__device__ inline void load_2d(void* to, const CUtensorMap* map, uint64_t* barrier, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y)
      : "memory");
}
__device__ inline void load_3d(void* to, const CUtensorMap* map, uint64_t* barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
      : "memory");
}
// To the same address of every block of `mask`, and its bytes to the same barrier there.
__device__ inline void load_2d_multicast(void* to, const CUtensorMap* map, uint64_t* barrier, int x, int y,
                                         uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%3, "
      "%4}], [%2], %5;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "h"(mask)
      : "memory");
}
__device__ inline void load_3d_multicast(void* to, const CUtensorMap* map, uint64_t* barrier, int x, int y,
                                         int z, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%3, "
      "%4, %5}], [%2], %6;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "h"(mask)
      : "memory");
}
__device__ inline void store_2d(const CUtensorMap* map, const void* from, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
               "r"(shared_address(from)), "r"(x), "r"(y)
               : "memory");
}
__device__ inline void store_3d(const CUtensorMap* map, const void* from, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
               "r"(shared_address(from)), "r"(x), "r"(y), "r"(z)
               : "memory");
}
// Adds to what is there, element by element, rounding to the stored type.
__device__ inline void add_3d(const CUtensorMap* map, const void* from, int x, int y, int z) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
      "r"(shared_address(from)), "r"(x), "r"(y), "r"(z)
      : "memory");
}
// ---- Bulk copies of a run of bytes: addresses and size are multiples of 16.

__device__ inline void load_bulk(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}
__device__ inline void store_bulk(void* to, const void* from, uint32_t bytes) {
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
      "r"(shared_address(from)), "r"(bytes)
      : "memory");
}

// ---- Groups of bulk stores, of either kind.

__device__ inline void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// The sources of all committed stores but the last kPending may be overwritten.
template <int kPending>
__device__ inline void store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Ordinary stores to shared memory become visible to the copy engine and the tensor cores.
__device__ inline void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- Clusters and warp roles.

__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ inline void cluster_sync() {
  __syncwarp();  // the instruction wants whole warps
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The warp's number in its block, by all of its threads. From one lane, so that the compiler knows that a
// warp does not part ways over it, and keeps what follows from it in the registers a warp shares.
__device__ inline int warp_of_block() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
}
template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
// Among `threads` threads; identifiers 1 to 15 (0 is __syncthreads).
__device__ inline void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Four 8x8 tiles of 16-bit elements from the registers of a warp; lane i gives the address of row i % 8 of
// tile i / 8.
__device__ inline void store_tiles(uint32_t shared, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}

}  // namespace pleat::kernels::cuda
