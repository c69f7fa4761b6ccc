#include "kernels/dense_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

constexpr Dtype kEveryType[] = {Dtype::U8, Dtype::I32, Dtype::I64, Dtype::F32, Dtype::F64};

// Small whole numbers: exact in every type, and so are sums of two.
Tensor counting(Dtype dtype, std::vector<int64_t> shape, int64_t from = 1) {
  Tensor t = Tensor::zeros(dtype, std::move(shape));
  for (int64_t i = 0; i < t.size(); ++i) t.set(i, static_cast<double>((from + i) % 120));
  return t;
}

TEST(FillZero, EveryTypeAndPhase) {
  for (Dtype dtype : kEveryType)
    for (Phase phase : {Phase::Forward, Phase::BackwardInput, Phase::BackwardWeight, Phase::Update})
      for (const std::vector<int64_t>& shape : {std::vector<int64_t>{0, 3}, {1}, {70001, 3}}) {
        Tensor y = Tensor::nan(dtype, shape);
        call(KernelKind::fill_zero, phase, {out(y)});
        EXPECT_TRUE(y == Tensor::zeros(dtype, shape));
      }
}

TEST(Narrow, RoundsToTheNearestBfloat16) {
  constexpr double u = 0x1p-8;
  for (Phase phase : {Phase::Forward, Phase::BackwardInput, Phase::BackwardWeight}) {
    Tensor x = Tensor::zeros(Dtype::F32, {2, 4});
    const std::pair<double, double> cases[] = {{1 + u / 2, 1},
                                               {1 + u, 1},  // a tie, to even
                                               {1 + 1.1 * u, 1 + 2 * u},
                                               {1 + 3 * u, 1 + 4 * u},  // a tie
                                               {-1 - 1.1 * u, -1 - 2 * u},
                                               {0, 0},
                                               {0x1p-130, 0x1p-130},
                                               {3.4028235e38, INFINITY}};
    for (int64_t i = 0; i < 8; ++i) x.set(i, cases[i].first);
    call(KernelKind::narrow, phase, {add(x)});
    for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(x.at(i), cases[i].second) << i;
    Tensor empty = Tensor::zeros(Dtype::F32, {0, 3}), nan = Tensor::nan(Dtype::F32, {3});
    call(KernelKind::narrow, phase, {add(empty)});
    call(KernelKind::narrow, phase, {add(nan)});
    for (int64_t i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(nan.at(i)));
    Tensor wide = Tensor::zeros(Dtype::F64, {3});
    EXPECT_THROW(call(KernelKind::narrow, phase, {add(wide)}), base::Error);
  }
}

TEST(AddRows, EveryChoiceOfSummands) {
  for (Dtype dtype : {Dtype::F32, Dtype::F64})
    for (auto [rows, width] : {std::pair<int64_t, int64_t>{0, 5}, {1, 1}, {37, 129}, {300, 70}})
      for (int choice = 0; choice < 8; ++choice) {
        Tensor x = Tensor::normal(dtype, {rows, width}, 1), bias = Tensor::normal(dtype, {width}, 2),
               shared = Tensor::normal(dtype, {rows, width}, 3),
               residual = Tensor::normal(dtype, {rows, width}, 4);
        Tensor want = x;
        // Stored after every addition: the order and the rounding are part of the contract.
        for (int64_t i = 0; i < x.size(); ++i) {
          if (choice & 1) want.set(i, want.at(i) + bias.at(i % width));
          if (choice & 2) want.set(i, want.at(i) + shared.at(i));
          if (choice & 4) want.set(i, want.at(i) + residual.at(i));
        }
        for (int threads : {1, 2, 4}) {
          Tensor y = Tensor::nan(dtype, {rows, width});
          call(KernelKind::add_rows, Phase::Forward,
               {in(x), choice & 1 ? in(bias) : none(), choice & 2 ? in(shared) : none(),
                choice & 4 ? in(residual) : none(), out(y)},
               {}, threads);
          EXPECT_TRUE(y == want);
        }
      }
}

TEST(AddRows, BiasGradientSumsColumnsInDouble) {
  for (Dtype dtype : {Dtype::F32, Dtype::F64})
    for (auto [rows, width] : {std::pair<int64_t, int64_t>{0, 5}, {1, 1}, {1003, 131}}) {
      Tensor dy = Tensor::normal(dtype, {rows, width}, 1), start = Tensor::normal(dtype, {width}, 2);
      Tensor want = start, fresh_want = start;
      for (int64_t j = 0; j < width; ++j) {
        double sum = 0;
        for (int64_t t = 0; t < rows; ++t) sum += dy.at(t * width + j);
        fresh_want.set(j, sum);
        want.set(j, start.at(j) + sum);
      }
      for (int threads : {1, 2, 4}) {
        Tensor fresh = Tensor::nan(dtype, {width}), sum = start;
        call(KernelKind::add_rows, Phase::BackwardWeight, {in(dy), out(fresh)}, {}, threads);
        call(KernelKind::add_rows, Phase::BackwardWeight, {in(dy), add(sum)}, {}, threads);
        EXPECT_TRUE(fresh == fresh_want);
        EXPECT_TRUE(sum == want);
      }
    }
}

TEST(AddRows, RefusesOtherShapes) {
  Tensor x = Tensor::zeros(Dtype::F32, {3, 4}), y = x, bias = Tensor::zeros(Dtype::F32, {3}),
         wide = Tensor::zeros(Dtype::F64, {3, 4}), short_rows = Tensor::zeros(Dtype::F32, {2, 4});
  const auto run = [&](Pass b, Pass shared, Pass residual) {
    call(KernelKind::add_rows, Phase::Forward, {in(x), b, shared, residual, out(y)});
  };
  expect_refused([&] { run(in(bias), none(), none()); }, "[add_rows] argument 'bias' is [3], needed [4]");
  expect_refused([&] { run(none(), in(short_rows), none()); },
                 "[add_rows] argument 'shared' is [2, 4], needed [3, 4]");
  expect_refused([&] { run(none(), none(), in(wide)); }, "[add_rows] argument 'residual' is f64, needed f32");
  expect_refused(
      [&] {
        call(KernelKind::add_rows, Phase::BackwardWeight, {in(x), out(bias)});
      },
      "[add_rows] argument 'dbias' is [3], needed [4]");
}

void take(Tensor& x, Tensor& index, Pass offsets, Pass y, Phase phase = Phase::Forward, int threads = 2) {
  call(KernelKind::take_rows, phase, {in(x), in(index), offsets, y}, {}, threads);
}

TEST(TakeRows, PlainLoopForEveryTypeShapeAndMode) {
  for (Dtype dtype : kEveryType)
    for (Phase phase : {Phase::Forward, Phase::BackwardInput})
      for (auto [from_rows, rows, width] :
           {std::tuple<int64_t, int64_t, int64_t>{5, 0, 3}, {0, 4, 3}, {7, 11, 1}, {1, 1, 1}, {90, 301, 67}})
        for (bool flat : {false, true})
          for (bool limited : {false, true}) {
            if (flat && width != 1) continue;
            const std::vector<int64_t> from_shape =
                flat ? std::vector<int64_t>{from_rows} : std::vector<int64_t>{from_rows, width};
            const std::vector<int64_t> shape =
                flat ? std::vector<int64_t>{rows} : std::vector<int64_t>{rows, width};
            Tensor x = counting(dtype, from_shape), index = Tensor::zeros(Dtype::I32, {rows});
            const int64_t limit = limited ? rows / 2 : rows;
            for (int64_t r = 0; r < rows; ++r)
              index.set(r, r >= limit
                               ? 1 << 20
                               : static_cast<double>(from_rows == 0 ? -1 : r * 5 % (from_rows + 1) - 1));
            Tensor offsets = Tensor::of(Dtype::I32, {3}, {0, 0, static_cast<double>(limit)});
            const Tensor before = counting(dtype, shape, 3);
            Tensor fresh_want = Tensor::nan(dtype, shape), sum_want = before;
            for (int64_t r = 0; r < limit; ++r)
              for (int64_t j = 0; j < width; ++j) {
                const double value =
                    index.at(r) < 0 ? 0 : x.at(static_cast<int64_t>(index.at(r)) * width + j);
                fresh_want.set(r * width + j, value);
                sum_want.set(r * width + j, before.at(r * width + j) + value);
              }
            for (int threads : {1, 2, 4}) {
              Tensor fresh = Tensor::nan(dtype, shape), sum = before;
              take(x, index, limited ? in(offsets) : none(), out(fresh), phase, threads);
              take(x, index, limited ? in(offsets) : none(), add(sum), phase, threads);
              // Bytes, so that rows past the limit must still hold the same NaN.
              EXPECT_TRUE(fresh == fresh_want);
              EXPECT_TRUE(sum == sum_want);
            }
          }
}

TEST(TakeRows, RefusesBadIndexAndShapes) {
  Tensor x = Tensor::zeros(Dtype::F32, {3, 4}), y = Tensor::nan(Dtype::F32, {2, 4}),
         index = Tensor::of(Dtype::I32, {2}, {0, 3}), offsets = Tensor::of(Dtype::I32, {2}, {0, 3});
  const Tensor before = y;
  expect_refused([&] { take(x, index, none(), out(y)); },
                 "[take_rows] index 3 of row 1 is outside the 3 rows of 'x'");
  expect_refused([&] { take(x, index, in(offsets), out(y)); },
                 "[take_rows] offsets end at row 3, needed 0 to 2");
  index.set(0, -2);
  expect_refused([&] { take(x, index, none(), out(y)); }, "index -2 of row 0");
  EXPECT_TRUE(y == before);
  Tensor narrow = Tensor::zeros(Dtype::F32, {2, 3}), flat = Tensor::zeros(Dtype::F32, {2}),
         wide = Tensor::zeros(Dtype::F64, {2, 4}), few = Tensor::zeros(Dtype::I32, {1}),
         deep = Tensor::zeros(Dtype::F32, {2, 2, 2}), nothing = Tensor::zeros(Dtype::I32, {0});
  expect_refused([&] { take(x, index, none(), out(narrow)); },
                 "[take_rows] argument 'y' is [2, 3], needed [2, 4]");
  expect_refused([&] { take(x, index, none(), out(flat)); }, "argument 'y' has 1 dimensions, needed 2");
  expect_refused([&] { take(x, index, none(), out(wide)); }, "argument 'y' is f64, needed f32");
  expect_refused([&] { take(x, few, none(), out(y)); }, "argument 'index' is [1], needed [2]");
  expect_refused([&] { take(deep, index, none(), out(y)); }, "argument 'x' has 3 dimensions, needed 2");
  expect_refused([&] { take(x, index, in(nothing), out(y)); }, "argument 'offsets' is empty");
}

TEST(Columns, CutAndJoined) {
  for (Dtype dtype : kEveryType)
    for (auto [rows, left, right] :
         {std::tuple<int64_t, int64_t, int64_t>{0, 2, 3}, {5, 0, 3}, {5, 3, 0}, {1, 1, 1}, {701, 33, 12}})
      for (int threads : {1, 2, 4}) {
        Tensor x = counting(dtype, {rows, left + right});
        Tensor a = Tensor::nan(dtype, {rows, left}), b = Tensor::nan(dtype, {rows, right}),
               y = Tensor::nan(dtype, {rows, left + right});
        call(KernelKind::columns, Phase::Forward, {in(x), out(a)}, {{"begin", 0}}, threads);
        call(KernelKind::columns, Phase::Forward, {in(x), out(b)}, {{"begin", static_cast<double>(left)}},
             threads);
        for (int64_t t = 0; t < rows; ++t)
          for (int64_t j = 0; j < left + right; ++j)
            ASSERT_EQ(j < left ? a.at(t * left + j) : b.at(t * right + j - left),
                      x.at(t * (left + right) + j));
        call(KernelKind::columns, Phase::BackwardInput, {in(a), in(b), out(y)}, {}, threads);
        EXPECT_TRUE(y == x);
      }
  Tensor x = Tensor::zeros(Dtype::F32, {2, 4}), a = Tensor::zeros(Dtype::F32, {2, 3}),
         other = Tensor::zeros(Dtype::F32, {3, 1});
  expect_refused(
      [&] {
        call(KernelKind::columns, Phase::Forward, {in(x), out(a)}, {{"begin", 2}});
      },
      "[columns] columns 2 to 5 are outside the 4 of 'x'");
  expect_refused(
      [&] {
        call(KernelKind::columns, Phase::Forward, {in(x), out(other)}, {{"begin", 0}});
      },
      "[columns] argument 'y' is [3, 1], needed [2, 1]");
  expect_refused(
      [&] {
        call(KernelKind::columns, Phase::BackwardInput, {in(a), in(other), out(x)});
      },
      "[columns] argument 'b' is [3, 1], needed [2, 1]");
  expect_refused(
      [&] {
        call(KernelKind::columns, Phase::BackwardInput, {in(a), in(a), out(x)});
      },
      "[columns] argument 'y' is [2, 4], needed [2, 6]");
}

program::AttrSet heads(int64_t a, int64_t b, int64_t c, int64_t parts) {
  return {{"a", static_cast<double>(a)},
          {"b", static_cast<double>(b)},
          {"c", static_cast<double>(c)},
          {"parts", static_cast<double>(parts)}};
}

TEST(SplitHeads, PartsOfEveryPieceAndBack) {
  struct Case {
    int64_t rows, a, b, c, parts;
  };
  for (Dtype dtype : {Dtype::F32, Dtype::F64, Dtype::I32})
    for (const Case& s : {Case{0, 4, 2, 2, 2}, Case{3, 5, 0, 0, 1}, Case{7, 12, 4, 8, 4},
                          Case{301, 64, 32, 0, 2}, Case{129, 9, 3, 6, 3}})
      for (bool flat : {false, true}) {
        const int64_t whole = s.a + s.b + s.c, narrow = whole / s.parts;
        const auto shape = flat ? std::vector<int64_t>{s.parts * s.rows, narrow}
                                : std::vector<int64_t>{s.parts, s.rows, narrow};
        Tensor x = counting(dtype, {s.rows, whole}), want = Tensor::nan(dtype, shape);
        for (int64_t j = 0; j < s.parts; ++j)
          for (int64_t t = 0; t < s.rows; ++t) {
            int64_t to = (j * s.rows + t) * narrow, piece = 0;
            for (int64_t width : {s.a, s.b, s.c}) {
              const int64_t part = width / s.parts;
              for (int64_t i = 0; i < part; ++i) want.set(to++, x.at(t * whole + piece + j * part + i));
              piece += width;
            }
          }
        const program::AttrSet attrs = heads(s.a, s.b, s.c, s.parts);
        for (Phase phase : {Phase::Forward, Phase::BackwardInput})
          for (int threads : {1, 2, 4}) {
            Tensor y = Tensor::nan(dtype, shape), back = Tensor::nan(dtype, x.shape);
            call(KernelKind::split_heads, phase, {in(x), out(y)}, attrs, threads);
            EXPECT_TRUE(y == want);
            call(KernelKind::merge_heads, phase, {in(y), out(back)}, attrs, threads);
            EXPECT_TRUE(back == x);
          }
      }
}

TEST(SplitHeads, RefusesUnevenPartsAndShapes) {
  Tensor x = Tensor::zeros(Dtype::F32, {3, 8}), y = Tensor::zeros(Dtype::F32, {2, 3, 4}),
         other = Tensor::zeros(Dtype::F32, {2, 4, 3}), wide = Tensor::zeros(Dtype::F64, {2, 3, 4});
  const auto split = [&](Tensor& to, program::AttrSet attrs) {
    call(KernelKind::split_heads, Phase::Forward, {in(x), out(to)}, std::move(attrs));
  };
  expect_refused([&] { split(y, heads(5, 1, 2, 2)); },
                 "[split_heads] attribute 'a' is 5, needed a multiple of the 2 parts");
  expect_refused([&] { split(y, heads(4, 2, 2, 0)); }, "[split_heads] attribute 'parts' is 0");
  expect_refused([&] { split(y, heads(4, 2, 0, 2)); }, "[split_heads] argument 'x' is [3, 8], needed [3, 6]");
  expect_refused([&] { split(other, heads(4, 2, 2, 2)); },
                 "[split_heads] argument 'y' is [2, 4, 3], needed [2, 3, 4]");
  expect_refused([&] { split(wide, heads(4, 2, 2, 2)); }, "[split_heads] argument 'y' is f64, needed f32");
  expect_refused(
      [&] {
        call(KernelKind::merge_heads, Phase::Forward, {in(other), out(x)}, heads(4, 2, 2, 2));
      },
      "[merge_heads] argument 'x' is [2, 4, 3], needed [2, 3, 4]");
}

}  // namespace
}  // namespace pleat::kernels::testing
