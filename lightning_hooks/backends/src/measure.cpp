#include "measure.hpp"

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "blocks.hpp"
#include "pieces.hpp"

namespace hooks {
namespace {

constexpr std::int64_t kChunk = 2 * kBlock;   // elements that a thread takes at a time
constexpr int kMiddle = kBuckets / 2;         // the bucket of zeros and of magnitudes below the normal numbers
constexpr int kExponents = kKeys / 2;
constexpr std::int64_t kMostCounted = std::int64_t(1) << 31;  // elements before the tables are flushed: they have 32 bits

using Tables = std::uint32_t[kTables][kKeys];

struct Scratch {
  alignas(64) std::uint64_t buffer[kBlock];
  Tables tables;
  int used = 0;              // the first tables, which may hold counts
  std::int64_t counted = 0;  // elements in the tables
};

// The row of the elements [begin, end); for a histogram, they are counted while they are in the cache.
Row measure_range(const Blocks& kernels, const View& view, std::int64_t begin, std::int64_t end, Scratch& scratch) {
  Row out, part;
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

// Prefetches the beginning of what is read next: the hardware prefetcher starts only after some misses.
void prefetch(const View& view, std::int64_t begin) {
  if (!view.gaps.empty()) return;
  const std::int64_t size = size_of(view.minus ? view.stored : view.kind);
  const std::int64_t bytes = std::min<std::int64_t>((view.numel - begin) * size, 1024);
  for (std::int64_t offset = 0; offset < bytes; offset += 64) __builtin_prefetch(view.data + begin * size + offset);
}

// One for each thread, kept, because setting it up takes longer than measuring a small tensor. Between uses the tables are zero.
Scratch& scratch_of_thread() {
  thread_local const std::unique_ptr<Scratch> scratch(new Scratch());
  return *scratch;
}

// Adds the tables of keys to the buckets and resets them.
void flush(Scratch& scratch, double* buckets) {
  std::int64_t sums[kKeys] = {};  // signed: faster to convert to float64
  for (int table = 0; table < scratch.used; ++table) {
    for (int key = 0; key < kKeys; ++key) sums[key] += scratch.tables[table][key];
  }
  std::fill_n(&scratch.tables[0][0], scratch.used * kKeys, 0u);
  scratch.used = 0;
  scratch.counted = 0;
  for (int exponent = 0; exponent < kExponents - 1; ++exponent) {  // the last one is NaN and infinities, which have no bucket
    buckets[kMiddle + exponent] += static_cast<double>(sums[exponent]);
    buckets[kMiddle - exponent] += static_cast<double>(sums[kExponents + exponent]);
  }
}

void repeat(Row& row, double copies) {
  row.count *= copies;
  row.m2 *= copies;
  row.abs_sum *= copies;
  row.zeros *= copies;
  row.nonfinite *= copies;
  row.underflow *= copies;
}

// The work of several threads; kept by the calling thread, so that a tensor costs no allocation.
class Job {
 public:
  void plan(const View* of, std::size_t many, unsigned threads) {
    kernels = &blocks();
    views = of;
    pieces.plan(many, [of](std::size_t i) { return of[i].numel; }, kChunk, threads);
    bytes = 0;
    for (std::size_t i = 0; i < many; ++i) bytes += views[i].numel * size_of(views[i].kind);
    rows.resize(pieces.size());
  }
  void merge_into(Row* out) const {
    for (std::size_t i = 0; i < pieces.size(); ++i) merge(out[pieces[i].of], rows[i]);
  }
  std::int64_t size() const { return bytes; }
  static void body(void* job, unsigned thread) {
    try {
      static_cast<Job*>(job)->work(thread);
    } catch (const std::bad_alloc&) {
      // No memory for the scratch of this thread, so it took no piece; the calling thread has its scratch already.
    }
  }

 private:
  const Blocks* kernels = nullptr;
  const View* views = nullptr;
  Pieces pieces;
  std::vector<Row> rows;
  std::mutex adding;
  std::int64_t bytes = 0;

  void work(unsigned thread) {
    Scratch& scratch = scratch_of_thread();
    const View* counted = nullptr;  // whose elements are in the tables
    const auto flush_counts = [&] {
      if (counted && counted->counts) {
        const std::lock_guard<std::mutex> locked(adding);
        flush(scratch, counted->counts);
      }
    };
    pieces.take(thread, [&](std::size_t i) {
      if (i + 1 < pieces.size()) prefetch(views[pieces[i + 1].of], pieces[i + 1].begin);
      const Piece& piece = pieces[i];
      const View& view = views[piece.of];
      if (counted != &view) flush_counts();
      counted = &view;
      rows[i] = measure_range(*kernels, view, piece.begin, piece.end, scratch);
      if (scratch.counted >= kMostCounted) flush_counts();
    });
    flush_counts();
  }
};

// On the calling thread, in the same pieces as with several threads, so that the rounding is the same.
void measure_alone(const View* views, std::size_t many, Row* rows) {
  const Blocks& kernels = blocks();
  Scratch& scratch = scratch_of_thread();
  for (std::size_t i = 0; i < many; ++i) {
    const View& view = views[i];
    rows[i] = Row();
    for (std::int64_t begin = 0; begin < view.numel; begin += kChunk) {
      const std::int64_t end = std::min(view.numel, begin + kChunk);
      merge(rows[i], measure_range(kernels, view, begin, end, scratch));
      if (scratch.counted >= kMostCounted) flush(scratch, view.counts);
    }
    if (view.counts) flush(scratch, view.counts);
  }
}

void measure_together(const View* views, std::size_t many, Row* rows, unsigned threads, bool in_team) {
  static_cast<void>(scratch_of_thread());  // raises here if there is no memory, not inside the threads
  thread_local const std::unique_ptr<Job> job(new Job());
  job->plan(views, many, threads);
  run_together(Job::body, job.get(), job->size(), threads, in_team);
  std::fill_n(rows, many, Row());
  job->merge_into(rows);
}

}  // namespace

void measure(const View* views, std::size_t many, Row* rows, unsigned threads) {
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < many; ++i) {
    elements += views[i].numel;
    if (views[i].counts) std::fill_n(views[i].counts, kBuckets, 0.0);
  }
  share(
      elements, threads, [=] { measure_alone(views, many, rows); },
      [=](bool in_team) { measure_together(views, many, rows, threads, in_team); });
  for (std::size_t i = 0; i < many; ++i) {
    if (!views[i].sized) rows[i].abs_sum = std::numeric_limits<double>::quiet_NaN();
    const double copies = views[i].copies;
    if (copies == 1) continue;
    repeat(rows[i], copies);
    if (views[i].counts) std::for_each_n(views[i].counts, kBuckets, [copies](double& bucket) { bucket *= copies; });
  }
}

}  // namespace hooks
