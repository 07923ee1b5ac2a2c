// One block of at most kBlock elements at a time, by the widest vectors of the processor.
#pragma once

#include <cstdint>

#include "row.hpp"

namespace hooks {

constexpr int kKeys = 512;  // sign and the eight exponent bits of a float32
// Equal neighbours count in different tables, so that none waits for the store before it. Few elements take few of them:
// adding them up would take longer than the counting.
constexpr int kTables = 8, kFewTables = 2, kWorthTables = 2048;

// What one instruction set offers. `measure` writes the row of a block; `count` adds its elements to tables of keys and says
// how many of these it used, the first ones; `subtract` writes the differences of two blocks, those of sixteen-bit floats as float32.
struct Blocks {
  const char* name;
  void (*measure)(Kind, const void* data, int n, bool sized, Row& out);
  int (*count)(Kind, const void* data, int n, std::uint32_t (*tables)[kKeys]);
  void (*subtract)(Kind, const void* left, const void* right, int n, void* out);
};

// The best of them that this processor runs, unless another was chosen.
const Blocks& blocks();

// Takes another from now on, for tests of all of them on one machine; false where this processor does not run it.
bool choose_blocks(const char* name);

// The exact row of a block in scalar float64, whatever it holds: NaN, infinities, subnormals, the ends of the range.
void measure_carefully(Kind, const void* data, int n, Row& out);

}  // namespace hooks
