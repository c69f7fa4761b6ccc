// Which algorithm a dense product takes on a GPU, as plain data: measured once, kept with the run, taken
// again by a resume, so that the same bits come out.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "tensor/dtype.h"

namespace pleat::kernels {

// All the choice may depend on besides device and library: what is multiplied, never where or beside what.
//   d[m, n] = op_a(a) op_b(b) (+ what is added) (+ bias)
struct MatmulKey {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  tensor::Dtype in = tensor::Dtype::F32, out = tensor::Dtype::F32;
  bool adds = false;  // to what d holds, or a further operand
  bool bias = false;
  auto operator<=>(const MatmulKey&) const = default;
};

std::string layout_of(const MatmulKey& key);  // "NT": a as it is, b transposed
std::string text_of(const MatmulKey& key);    // "4096x2048x1024 NT bf16->f32 add bias"

struct MatmulChoice {
  MatmulKey key;
  std::string what;                     // who asked first, for people: "linear forward"
  std::array<uint64_t, 8> algorithm{};  // opaque to all but the library; holds no pointers
  int64_t workspace = 0;                // bytes
  double tflops = 0;                    // when it was measured; 0: taken as the library recommends
  bool operator==(const MatmulChoice&) const = default;
};

// What choices are good for. Another device model or cuBLASLt needs choices of its own; another cuDNN does
// not, but attention may then give other bits.
struct MatmulMachine {
  std::string device;
  int64_t cublas = 0, cudnn = 0;  // as the libraries print them
  bool operator==(const MatmulMachine&) const = default;
};

// Of what was tried in the order the library recommends it, the fastest that works (of equal ones the first);
// nothing: none does.
std::optional<size_t> fastest(std::span<const std::optional<double>> seconds);

}  // namespace pleat::kernels
