// The measurement of one block of at most kBlock elements, with the widest vectors of the processor.
#pragma once

#include <cstdint>

#include "row.hpp"

namespace hooks {

constexpr int kKeys = 512;  // a key is the sign bit and the eight exponent bits of a float32
// Neighbouring elements are counted in different tables, so that an increment does not wait for the previous store to the same key.
// Fewer than kWorthTables elements use kFewTables tables, because adding up kTables tables would take longer than counting.
constexpr int kTables = 8, kFewTables = 2, kWorthTables = 2048;

// The sums of units, the slices of a tensor along one axis (for example its channels). Unit k has index k in each of the four arrays.
struct Units {
  double *sum, *square, *abs_max, *zeros;
};

// Sums over two tensors: of the products of their elements, and of the squares of the left one and of the right one.
struct Products {
  double both = 0, left = 0, right = 0;
};

// The functions of one instruction set. `measure` writes the row of a block, with the sum of magnitudes if `sized`. `count` adds
// its elements to the first tables and returns the number of tables used. `subtract` writes the differences of two blocks; those
// of sixteen-bit floats are float32. `products` adds the products and squares of two blocks to sums. `columns` and `runs` add
// elements to units: rows of n columns, where column k belongs to unit k, `stride` elements from one row to the next; and runs of
// equal length one after the other, where run k belongs to unit k. Zeros are counted only on request: most tensors have none.
struct Blocks {
  const char* name;
  void (*measure)(Kind, const void* data, int n, bool sized, RowMoments& out);
  int (*count)(Kind, const void* data, int n, std::uint32_t (*tables)[kKeys]);
  void (*subtract)(Kind, const void* left, const void* right, int n, void* out);
  void (*products)(Kind, const void* left, const void* right, int n, Products& out);
  void (*columns)(Kind, const void* data, std::int64_t rows, std::int64_t stride, int n, bool counted, Units into);
  void (*runs)(Kind, const void* data, std::int64_t many, std::int64_t length, bool counted, Units into);
};

// The chosen instruction set; by default the best one that the processor supports.
const Blocks& blocks();

// Chooses an instruction set, for tests. Returns false if the processor does not support the set.
bool choose_blocks(const char* name);

// Writes the row of a block, computed in scalar float64, which is correct for all values: NaN, infinities, subnormals, the ends of
// the range.
void measure_carefully(Kind, const void* data, int n, RowMoments& out);

}  // namespace hooks
