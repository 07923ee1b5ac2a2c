// One block of at most kBlock elements at a time, by the widest vectors of the processor.
#pragma once

#include <cstdint>

#include "row.hpp"

namespace hooks {

constexpr int kKeys = 512;  // sign and the eight exponent bits of a float32
// Equal neighbours count in different tables, so that none waits for the store before it. Few elements take few of them:
// adding them up would take longer than the counting.
constexpr int kTables = 8, kFewTables = 2, kWorthTables = 2048;

// Where the elements of a tensor were found: the neighbouring powers of two that hold nearly all of them.
struct Spread {
  int lowest = 0;     // the least of their exponents; 0 where that is not known
  int tables = 0;     // of octaves that are counted together: one of each sign, or some of the only one
  bool both = true;   // signs
  int scattered = 0;  // so many pieces are counted one by one, since there are no such powers of two, before it is tried again
};
constexpr int kScattered = 64;

// What one instruction set offers. `measure` writes the row of a block; `count` adds its elements to tables of keys and says
// how many of these it used, the first ones; what it learns of the elements' spread serves the next block of the same tensor;
// `subtract` writes the differences of two blocks, those of sixteen-bit floats as float32.
struct Blocks {
  const char* name;
  void (*measure)(Kind, const void* data, int n, bool sized, Row& out);
  int (*count)(Kind, const void* data, int n, std::uint32_t (*tables)[kKeys], Spread& spread);
  void (*subtract)(Kind, const void* left, const void* right, int n, void* out);
};

// The best of them that this processor runs, unless another was chosen.
const Blocks& blocks();

// Takes another from now on, for tests of all of them on one machine; false where this processor does not run it.
bool choose_blocks(const char* name);

// The exact row of a block in scalar float64, whatever it holds: NaN, infinities, subnormals, the ends of the range.
void measure_carefully(Kind, const void* data, int n, Row& out);

}  // namespace hooks
