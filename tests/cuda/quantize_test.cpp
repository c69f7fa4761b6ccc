// Codes of recipe fp8 on the GPU: the bits of the CPU's, for numbers of every kind.
#include <cmath>
#include <limits>

#include "cuda/cuda_support.h"
#include "tensor/few_bits.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;
using tensor::E4M3;

const program::AttrSet kFp8 = {{"recipe", 1}};

int64_t blocks(int64_t n) { return (n + 127) / 128; }

void expect_same(const char* what, const Tensor& got, const Tensor& want) {
  ASSERT_EQ(got.bytes.size(), want.bytes.size());
  const int64_t width = tensor::size_of(got.dtype);
  int64_t wrong = 0, first = -1;
  for (size_t i = 0; i < got.bytes.size(); ++i)
    if (got.bytes[i] != want.bytes[i]) {
      if (wrong++ == 0) first = static_cast<int64_t>(i) / width;
    }
  if (wrong > 0)
    ADD_FAILURE() << what << ": " << wrong << " bytes differ, first at element " << first << " of "
                  << got.size() << ": GPU " << got.at(first) << ", CPU " << want.at(first);
}

// The CPU's arguments for a tensor of bf16 are the same numbers in f32.
Tensor as_float(const Tensor& x) { return Tensor::of(Dtype::F32, x.shape, x.numbers()); }

// Numbers of all sizes: blocks of zeros, infinities, NaN, the smallest and the largest.
Tensor troubled(Dtype dtype, int64_t rows, int64_t n, uint64_t seed) {
  Tensor x = Tensor::normal(Dtype::F32, {rows, n}, seed);
  const Tensor power = Tensor::normal(Dtype::F32, {rows}, seed + 1, 30.0);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < n; ++c) {
      double v = x.at(r * n + c);
      const int64_t kind = (r * n + c) * 7919 % 97;
      if (r % 3 == 1) v = std::ldexp(v, static_cast<int>(power.at(r)));
      if (kind == 1) v = 0;
      if (kind == 2) v = -0.0;
      if (kind == 3) v *= 1e-4;
      if (r % 11 == 5 && c / 128 == 0) v = 0;
      if (r % 13 == 6) v *= 1e-40;  // below the normal floats
      if (r % 17 == 8) v *= 1e38;
      if (r % 17 == 9 && kind == 4) v = std::numeric_limits<double>::infinity() * (c % 2 ? 1 : -1);
      if (r % 17 == 10 && kind == 5) v = std::nan("");
      if (r % 17 == 11 && kind == 6) v = std::numeric_limits<float>::max();
      if (r % 17 == 12) v = std::numeric_limits<double>::infinity();
      x.set(r * n + c, v);
    }
  return Tensor::of(dtype, x.shape, x.numbers());
}

struct Coded {
  Tensor codes, scale, counts, largest;
};
Coded blank(const Tensor& x, bool add_up) {
  Coded c{Tensor::nan(Dtype::E4M3, x.shape), Tensor::nan(Dtype::F32, {x.shape[0], blocks(x.shape[1])}),
          Tensor::nan(Dtype::I64, {4}), Tensor::nan(Dtype::F64, {1})};
  if (add_up)
    c.counts = Tensor::of(Dtype::I64, {4}, {5, 6, 7, 8}), c.largest = Tensor::of(Dtype::F64, {1}, {1e-30});
  return c;
}

TEST(CudaQuantize, CodesOfRowsHaveTheBitsOfTheCpus) {
  PLEAT_NEEDS_GPU();
  const std::vector<int64_t> shapes[] = {{37, 300},  {64, 512},  {5, 1}, {133, 2048},
                                         {130, 768}, {20, 1040}, {3, 16}};
  for (const Dtype dtype : {Dtype::F32, Dtype::BF16})
    for (const auto& shape : shapes)
      for (const bool routed : {false, true}) {
        SCOPED_TRACE(::testing::Message() << tensor::name_of(dtype) << " " << shape[0] << " x " << shape[1]
                                          << " routed " << routed);
        Tensor x = troubled(dtype, shape[0], shape[1], 3), wide = as_float(x);
        Tensor offsets = Tensor::of(Dtype::I32, {3}, {0, 1, static_cast<double>(shape[0] - 1)});
        Tensor token_row = Tensor::zeros(Dtype::I32, {shape[0], 3}),
               coords = Tensor::zeros(Dtype::I64, {program::kNumGroups});
        for (int64_t i = 0; i < token_row.size(); ++i) token_row.set(i, i % 4 == 1 ? -1 : double(i));
        for (const int place : {0, 1}) {
          coords.set(2, place);
          Coded gpu = blank(x, routed), cpu = blank(x, routed);
          const auto args = [&](Tensor& from, Coded& to) {
            return std::vector<Pass>{in(from),
                                     routed ? in(offsets) : none(),
                                     routed ? none() : in(token_row),
                                     in(coords),
                                     out(to.codes),
                                     out(to.scale),
                                     none(),
                                     none(),
                                     routed ? add(to.counts) : out(to.counts),
                                     routed ? add(to.largest) : out(to.largest)};
          };
          const program::AttrSet attrs = {{"group", 2}, {"recipe", 1}};
          call(KernelKind::quantize, Phase::Forward, args(wide, cpu), attrs);
          call_cuda(KernelKind::quantize, Phase::Forward, args(x, gpu), attrs);
          expect_same("codes", gpu.codes, cpu.codes);
          expect_same("scales", gpu.scale, cpu.scale);
          expect_same("counts", gpu.counts, cpu.counts);
          expect_same("largest", gpu.largest, cpu.largest);
        }
      }
}

// Every code, what lies half way to the next, and the floats beside that.
TEST(CudaQuantize, EveryCodeAndEveryTie) {
  PLEAT_NEEDS_GPU();
  std::vector<float> numbers;
  for (uint32_t c = 0; c < 127; ++c) {
    const float value = static_cast<float>(E4M3::value(c)),
                next = static_cast<float>(E4M3::value(c + 1 < 127 ? c + 1 : c));
    const float half = (value + next) / 2;
    for (const float x : {value, half, std::nextafter(half, 0.0f), std::nextafter(half, 1e9f)})
      if (x <= 448) numbers.push_back(x), numbers.push_back(-x);
  }
  const int64_t n = 128, rows = (static_cast<int64_t>(numbers.size()) + n - 2) / (n - 1);
  Tensor x = Tensor::zeros(Dtype::F32, {rows, n});
  for (int64_t r = 0; r < rows; ++r) {
    x.set(r * n, 448);
    for (int64_t c = 1; c < n; ++c)
      if (const size_t i = static_cast<size_t>(r * (n - 1) + c - 1); i < numbers.size())
        x.set(r * n + c, numbers[i]);
  }
  Coded gpu = blank(x, false), cpu = blank(x, false);
  for (Coded* to : {&gpu, &cpu}) {
    const std::vector<Pass> args = {in(x),          none(), none(), none(), out(to->codes),
                                    out(to->scale), none(), none(), none(), none()};
    if (to == &cpu)
      call(KernelKind::quantize, Phase::BackwardInput, args, kFp8);
    else
      call_cuda(KernelKind::quantize, Phase::BackwardInput, args, kFp8);
  }
  EXPECT_EQ(cpu.scale.at(0), 1);
  expect_same("codes", gpu.codes, cpu.codes);
}

// Codes of every kind under scales of every kind, rows of experts that fill no block.
TEST(CudaQuantize, ColumnsHaveTheBitsOfTheCpus) {
  PLEAT_NEEDS_GPU();
  for (const int64_t n : {300, 150, 1, 128, 1412})
    for (const bool grouped : {false, true})
      for (const bool any : {false, true}) {
        SCOPED_TRACE(::testing::Message() << "width " << n << " grouped " << grouped << " any bits " << any);
        const int64_t rows = 420, experts = 5,
                      room = grouped ? blocks(rows + experts * 127) * 128 : blocks(rows) * 128;
        Tensor offsets = Tensor::of(Dtype::I32, {experts + 1}, {0, 130, 130, 131, 259, 400});
        Tensor x = Tensor::normal(Dtype::F32, {rows, n}, 8);
        Coded from = blank(x, false);
        call(
            KernelKind::quantize, Phase::Forward,
            {in(x), none(), none(), none(), out(from.codes), out(from.scale), none(), none(), none(), none()},
            kFp8);
        for (int64_t i = 0; any && i < from.codes.size(); ++i)
          from.codes.bytes[static_cast<size_t>(i)] = static_cast<std::byte>((i * 131 + i / 77) % 256);
        for (int64_t i = 0; any && i < from.scale.size(); ++i) {
          const int e = i % 5 == 0 ? static_cast<int>(i * 37 % 254) - 126 : static_cast<int>(i % 9) - 4;
          from.scale.set(i, std::ldexp(1.0, i % 131 == 7 ? 127 : i % 131 == 8 ? -126 : e));
        }
        Tensor codes[2], scale[2];
        for (const int gpu : {0, 1}) {
          codes[gpu] = Tensor::nan(Dtype::E4M3, {room, n}),
          scale[gpu] = Tensor::nan(Dtype::F32, {room / 128, n});
          const std::vector<Pass> args = {in(from.codes), in(from.scale), grouped ? in(offsets) : none(),
                                          out(codes[gpu]), out(scale[gpu])};
          if (gpu)
            call_cuda(KernelKind::turn_codes, Phase::BackwardWeight, args, kFp8);
          else
            call(KernelKind::turn_codes, Phase::BackwardWeight, args, kFp8);
        }
        expect_same("columns", codes[1], codes[0]);
        expect_same("their scales", scale[1], scale[0]);
      }
}

TEST(CudaQuantize, CodesOfWeightsHaveTheBitsOfTheCpus) {
  PLEAT_NEEDS_GPU();
  const std::vector<int64_t> shapes[] = {{140, 260}, {3, 128, 256}, {2, 33, 41}, {3, 272, 400}, {1, 1}};
  for (const Dtype dtype : {Dtype::F32, Dtype::BF16})
    for (const auto& shape : shapes)
      for (const bool turned : {false, true}) {
        const size_t rank = shape.size();
        SCOPED_TRACE(::testing::Message() << tensor::name_of(dtype) << " " << shape[rank - 2] << " x "
                                          << shape[rank - 1] << " turned " << turned);
        const int64_t size = (rank == 3 ? shape[0] : 1) * shape[rank - 2];
        Tensor flat = troubled(dtype, size, shape[rank - 1], 5), w = flat;
        w.shape = shape;
        Tensor wide = as_float(w);
        std::vector<int64_t> to = shape;
        if (turned) std::swap(to[rank - 1], to[rank - 2]);
        std::vector<int64_t> scales = to;
        scales[rank - 1] = blocks(to[rank - 1]), scales[rank - 2] = blocks(to[rank - 2]);
        Coded made[2];
        for (const int gpu : {0, 1}) {
          Coded& m = made[gpu];
          m = {Tensor::nan(Dtype::E4M3, to), Tensor::nan(Dtype::F32, scales), Tensor::nan(Dtype::I64, {4}),
               Tensor::nan(Dtype::F64, {1})};
          Tensor& from = gpu ? w : wide;
          const std::vector<Pass> args = turned
                                             ? std::vector<Pass>{in(from), out(m.codes), out(m.scale)}
                                             : std::vector<Pass>{in(from),     none(),        out(m.codes),
                                                                 out(m.scale), out(m.counts), out(m.largest)};
          const Phase phase = turned ? Phase::BackwardInput : Phase::Forward;
          const program::AttrSet attrs = {{"recipe", 1}, {"turned", turned ? 1.0 : 0.0}};
          if (gpu)
            call_cuda(KernelKind::quantize_weight, phase, args, attrs);
          else
            call(KernelKind::quantize_weight, phase, args, attrs);
        }
        expect_same("codes", made[1].codes, made[0].codes);
        expect_same("scales", made[1].scale, made[0].scale);
        if (turned) continue;
        expect_same("counts", made[1].counts, made[0].counts);
        expect_same("largest", made[1].largest, made[0].largest);
      }
}

TEST(CudaQuantize, CodesOfCopiesAreThoseOfTheCpus) {
  PLEAT_NEEDS_GPU();
  for (const int64_t n : {200, 2048, 33}) {
    const int64_t T = 60, R = 130, used = 121;
    Tensor x = troubled(Dtype::F32, T, n, 15), probs = Tensor::normal(Dtype::F32, {T, 3}, 16);
    Coded tokens = blank(x, false);
    call(
        KernelKind::quantize, Phase::Forward,
        {in(x), none(), none(), none(), out(tokens.codes), out(tokens.scale), none(), none(), none(), none()},
        kFp8);
    Tensor offsets = Tensor::of(Dtype::I32, {4}, {0, 50, 50, double(used)}),
           row_token = Tensor::zeros(Dtype::I32, {R}), row_slot = Tensor::zeros(Dtype::I32, {R});
    for (int64_t r = 0; r < R; ++r)
      row_token.set(r, r % 9 == 4 ? -1 : double(r * 17 % T)),
          row_slot.set(r, r % 9 == 4 ? -1 : double(r % 3));
    for (const bool backward : {false, true}) {
      Tensor codes[2], scale[2], row_probs[2];
      for (const int gpu : {0, 1}) {
        codes[gpu] = Tensor::nan(Dtype::E4M3, {R, n}), scale[gpu] = Tensor::nan(Dtype::F32, {R, blocks(n)});
        row_probs[gpu] = Tensor::nan(Dtype::F32, {R});
        const std::vector<Pass> args =
            backward ? std::vector<Pass>{in(tokens.codes), in(tokens.scale), in(row_token),
                                         in(offsets),      out(codes[gpu]),  out(scale[gpu])}
                     : std::vector<Pass>{in(tokens.codes), in(tokens.scale), in(probs),
                                         in(offsets),      in(row_token),    in(row_slot),
                                         out(codes[gpu]),  out(scale[gpu]),  out(row_probs[gpu])};
        const Phase phase = backward ? Phase::BackwardInput : Phase::Forward;
        if (gpu)
          call_cuda(KernelKind::permute_codes, phase, args, kFp8);
        else
          call(KernelKind::permute_codes, phase, args, kFp8);
      }
      expect_same("codes", codes[1], codes[0]);
      expect_same("scales", scale[1], scale[0]);
      if (!backward) expect_same("probabilities", row_probs[1], row_probs[0]);
    }
  }
}

}  // namespace
}  // namespace pleat::kernels::testing
