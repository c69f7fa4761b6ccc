// Matrix products of the CPU: CBLAS from OpenBLAS, loaded when first used.
//
// The library is loaded by hand, not by the linker, for one reason: it picks its kernels while it is loaded,
// and releases older than the processor fall back to SSE code there (five times slower). So the core type is
// chosen here, from what the processor can do, and set before loading; OPENBLAS_CORETYPE in the environment
// wins. The choice decides the bits of every product, so runs record it (blas_description).
#pragma once

#include <string>

namespace pleat::device {

enum class Transpose : bool { No, Yes };

// Row-major C = alpha op(A) op(B) + beta C; single-threaded, may be called from many threads at a time.
void blas_gemm(Transpose ta, Transpose tb, int m, int n, int k, float alpha, const float* a, int lda,
               const float* b, int ldb, float beta, float* c, int ldc);
void blas_gemm(Transpose ta, Transpose tb, int m, int n, int k, double alpha, const double* a, int lda,
               const double* b, int ldb, double beta, double* c, int ldc);

// "OpenBLAS 0.3.21 ... SkylakeX"; throws base::Error when no library is found.
std::string blas_description();

// Room for products of this many more threads at a time, until it goes. The library asks the system for a
// buffer when one more product runs than ever before, and where there is none it asks again without end. So
// whoever has threads takes their buffers first; throws base::Error (no memory) where that fails.
class BlasRoom {
 public:
  explicit BlasRoom(int num_threads);
  ~BlasRoom();
  BlasRoom(const BlasRoom&) = delete;
  BlasRoom& operator=(const BlasRoom&) = delete;

 private:
  int num_threads_;
};

}  // namespace pleat::device
