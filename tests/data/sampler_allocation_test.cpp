// Taking a sample allocates nothing at all: the step loop relies on it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "data/data_support.h"
#include "data/sampler.h"

namespace {
int64_t num_allocations = 0;
}

// Replaces the allocator of this whole test program by one that counts.
#if defined(__GNUC__) && !defined(__clang__)
// Inlined at -O1, the pair below looks to g++ 12 as if memory of one family were freed by the other.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#endif

void* operator new(std::size_t size) {
  ++num_allocations;
  if (void* at = std::malloc(size == 0 ? 1 : size)) return at;
  throw std::bad_alloc();
}
// The nothrow form too (std::stable_sort takes its buffer with it): a sanitizer brings its own, and would
// pair it with the delete below.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++num_allocations;
  return std::malloc(size == 0 ? 1 : size);
}
void operator delete(void* at) noexcept { std::free(at); }
void operator delete(void* at, const std::nothrow_t&) noexcept { std::free(at); }
void operator delete(void* at, std::size_t) noexcept { std::free(at); }

namespace pleat::data {
namespace {

TEST(Sampler, NextAllocatesNothing) {
  TemporaryFolder folder;
  const std::vector<std::vector<int32_t>> documents(100, {37});
  write_file(folder.at("d.idx"), RawIndex::of(documents, TokenType::U16).bytes());
  write_file(folder.at("d.bin"), std::string(7400, '\0'));
  const IndexedDataset dataset(folder.at("d"), 257);
  const Sampler sampler(dataset, {.seq_len = 64, .seed = 3});
  SampleStorage storage(1, 64);
  Sample sample = storage.sample(0);
  DataPosition position;
  const int64_t before = num_allocations;
  ASSERT_GT(before, 0);
  for (int i = 0; i < 200; ++i) sampler.next(position, sample);
  EXPECT_EQ(num_allocations, before);
}

}  // namespace
}  // namespace pleat::data
