// The measurement of a range of elements on one thread. All measurements are merged from ranges of at most kChunk elements.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "blocks.hpp"
#include "measure.hpp"

namespace hooks {

constexpr std::int64_t kChunk = 2 * kBlock;   // elements that a thread takes at a time
constexpr std::int64_t kMostCounted = std::int64_t(1) << 31;  // elements; tables with more are flushed, before a count overflows

struct Scratch {
  alignas(64) std::uint64_t buffer[kBlock];
  std::uint32_t tables[kTables][kKeys];
  int used = 0;              // the number of tables, from the first on, that may hold counts
  std::int64_t counted = 0;  // the number of elements in the tables
};

// The scratch memory of this thread. The thread keeps the memory, because allocating takes longer than measuring a small tensor.
// Between uses the tables are zero.
inline Scratch& scratch_of_thread() {
  thread_local const std::unique_ptr<Scratch> scratch(new Scratch());
  return *scratch;
}

// The row of the elements [begin, end). If the view has `counts`, the elements are counted while they are in the cache.
inline RowMoments measure_range(const Blocks& kernels, const View& view, std::int64_t begin, std::int64_t end, Scratch& scratch) {
  RowMoments out, part;
  while (begin < end) {
    const int n = static_cast<int>(std::min<std::int64_t>(kBlock, end - begin));
    const void* data = scratch.buffer;
    if (view.minus) {
      const std::int64_t offset = begin * size_of(view.stored);
      kernels.subtract(view.stored, view.data + offset, view.minus + offset, n, scratch.buffer);
    } else {
      data = view.block(begin, n, scratch.buffer);
    }
    kernels.measure(view.kind, data, n, view.sized, part);
    if (view.counts) {
      scratch.used = std::max(scratch.used, kernels.count(view.kind, data, n, scratch.tables));
      scratch.counted += n;
    }
    merge(out, part);
    begin += n;
  }
  return out;
}

// Adds the counts of the scratch tables, one for each pair of sign and exponent (a key), to the buckets of a histogram, and sets the
// tables to 0. Call it before the next histogram begins, and after kMostCounted elements at the latest.
void flush(Scratch& scratch, double* buckets);

}  // namespace hooks
