// Allocations are seen, and told from those of a GPU's driver.
#include "base/alloc_watch.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <vector>

namespace pleat::base {
namespace {

void use(void* memory) { asm volatile("" : : "r"(memory) : "memory"); }

TEST(AllocationWatch, SeesWhatIsLarge) {
  start_allocation_watch();
  std::vector<char> small(4000), big(5000), bigger(8192);
  use(small.data()), use(big.data()), use(bigger.data());
  note_allocation(4095);
  note_allocation(100'000);
  const AllocationCount seen = stop_allocation_watch();
  EXPECT_EQ(seen.driver, 0);
  EXPECT_EQ(seen.drivers, "");
  EXPECT_EQ(seen.largest, 100'000);
  EXPECT_EQ(seen.large, seen.available ? 3 : 1);
  note_allocation(100'000);
  EXPECT_EQ(stop_allocation_watch().large, seen.large) << "nobody watches";
}

// libcuda_allocates.so: a library whose name begins like those of the driver.
TEST(AllocationWatch, CountsTheDriversOwnApart) {
  void* library = dlopen(PLEAT_CUDA_ALLOCATES, RTLD_NOW);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto by_malloc = reinterpret_cast<void* (*)(size_t)>(dlsym(library, "allocate_by_malloc"));
  const auto by_new = reinterpret_cast<char* (*)(size_t)>(dlsym(library, "allocate_by_new"));
  ASSERT_TRUE(by_malloc && by_new);
  start_allocation_watch();
  void* one = by_malloc(5000);
  char* two = by_new(6000);
  void* ours = malloc(7000);
  use(one), use(two), use(ours);
  const AllocationCount seen = stop_allocation_watch();
  free(one), delete[] two, free(ours);
  if (!seen.available) GTEST_SKIP() << "sanitizers bring their own malloc";
  EXPECT_EQ(seen.driver, 2);
  EXPECT_EQ(seen.drivers, "libcuda_allocates.so");
  EXPECT_EQ(seen.large, 1);
  EXPECT_EQ(seen.largest, 7000);
}

TEST(AllocationWatch, CountsAddUp) {
  AllocationCount sum{true, 1, 5000, 2, "libcuda.so.1"};
  sum += {true, 2, 4096, 3, "libcublasLt.so.13, libcuda.so.1"};
  sum += {true, 0, 0, 0, ""};
  EXPECT_EQ(sum.large, 3);
  EXPECT_EQ(sum.largest, 5000);
  EXPECT_EQ(sum.driver, 5);
  EXPECT_EQ(sum.drivers, "libcuda.so.1, libcublasLt.so.13");
}

}  // namespace
}  // namespace pleat::base
