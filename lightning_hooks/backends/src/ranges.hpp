// The measurement of ranges of elements on one thread, in chunks, of which all larger measurements are made.
#pragma once

#include <cstdint>

#include "blocks.hpp"
#include "measure.hpp"

namespace hooks {

constexpr std::int64_t kChunk = 2 * kBlock;   // elements that a thread takes at a time
constexpr std::int64_t kMostCounted = std::int64_t(1) << 31;  // elements before the tables are flushed: they have 32 bits

struct Scratch {
  alignas(64) std::uint64_t buffer[kBlock];
  std::uint32_t tables[kTables][kKeys];
  int used = 0;              // the first tables, which may hold counts
  std::int64_t counted = 0;  // elements in the tables
};

// One for each thread, kept, because setting it up takes longer than measuring a small tensor. Between uses the tables are zero.
Scratch& scratch_of_thread();

// The row of the elements [begin, end); for a histogram, they are counted while they are in the cache.
Row measure_range(const Blocks& kernels, const View& view, std::int64_t begin, std::int64_t end, Scratch& scratch);

// Adds the tables of keys to the buckets and resets them.
void flush(Scratch& scratch, double* buckets);

}  // namespace hooks
