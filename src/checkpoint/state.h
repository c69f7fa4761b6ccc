// What a checkpoint holds, seen from the outside: named tensors, wherever they lie, and named scalars.
// Nothing here knows what the names mean; everything that makes the future of a run must be among them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "checkpoint/bytes.h"
#include "tensor/dtype.h"

namespace pleat::checkpoint {

struct TensorRef {
  std::string name;
  tensor::Dtype dtype;
  std::vector<int64_t> shape;
  ConstBytes bytes;  // dense, little-endian, exactly shape x element size
};

// `count` bytes of a tensor from `tensor_begin` on, and where they are in memory that holds a part of it.
struct Part {
  int64_t tensor_begin = 0, out_begin = 0, count = 0;
};

// Order of `tensors` does not matter: files and digests use ascending names.
struct StateView {
  int64_t step = 0;
  std::vector<TensorRef> tensors;
  std::map<std::string, int64_t> integers;
  std::map<std::string, double> reals;  // kept bit for bit, NaN payloads and signed zeros included
  std::map<std::string, std::string> texts;
};

// The SHA-256 of the whole state: over step, tensors (name, element type, shape, SHA-256 of the bytes) and
// scalars, in canonical order. Equal exactly when the states are. Throws base::Error on a state that cannot
// be saved: see describe() in manifest.h.
std::string state_sha256(const StateView& state);

base::Sha256Digest digest_of(const ConstBytes& bytes);

// shape x element size, checked; a zero extent does not excuse the others.
int64_t num_bytes_of(tensor::Dtype dtype, std::span<const int64_t> shape, const std::string& name);

}  // namespace pleat::checkpoint
