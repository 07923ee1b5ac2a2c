#include "measure.hpp"

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "pieces.hpp"
#include "ranges.hpp"

namespace hooks {
namespace {

// Prefetches the beginning of the piece that is read next, because the hardware prefetcher starts only after some misses.
void prefetch(const View& view, std::int64_t begin) {
  if (!view.gaps.empty()) return;
  const std::int64_t size = size_of(view.minus ? view.stored : view.kind);
  const std::int64_t bytes = std::min<std::int64_t>((view.numel - begin) * size, 1024);
  for (std::int64_t offset = 0; offset < bytes; offset += 64) __builtin_prefetch(view.data + begin * size + offset);
}

// Multiplies the sums and counts of a row by the number of times that an expanded tensor repeats its elements.
void repeat(RowMoments& row, double copies) {
  row.count *= copies;
  row.m2 *= copies;
  row.abs_sum *= copies;
  row.zeros *= copies;
  row.nonfinite *= copies;
  row.underflow *= copies;
}

// The measurement of several views by several threads. The calling thread keeps the object, so that measuring a tensor needs no
// allocation.
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
  void merge_into(RowMoments* out) const {
    for (std::size_t i = 0; i < pieces.size(); ++i) merge(out[pieces[i].of], rows[i]);
  }
  std::int64_t size() const { return bytes; }
  static void body(void* job, unsigned thread) {
    try {
      static_cast<Job*>(job)->work(thread);
    } catch (const std::bad_alloc&) {
      // There is no memory for the scratch of this thread, so it has taken no piece. The calling thread, which has its scratch,
      // takes all pieces.
    }
  }

 private:
  const Blocks* kernels = nullptr;
  const View* views = nullptr;
  Pieces pieces;
  std::vector<RowMoments> rows;
  std::mutex adding;
  std::int64_t bytes = 0;

  void work(unsigned thread) {
    Scratch& scratch = scratch_of_thread();
    const View* counted = nullptr;  // the view whose elements are in the tables
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

// Measures on the calling thread, in the same pieces as with several threads, so that rounding does not depend on threads.
void measure_alone(const View* views, std::size_t many, RowMoments* rows) {
  const Blocks& kernels = blocks();
  Scratch& scratch = scratch_of_thread();
  for (std::size_t i = 0; i < many; ++i) {
    const View& view = views[i];
    rows[i] = RowMoments();
    for (std::int64_t begin = 0; begin < view.numel; begin += kChunk) {
      const std::int64_t end = std::min(view.numel, begin + kChunk);
      merge(rows[i], measure_range(kernels, view, begin, end, scratch));
      if (scratch.counted >= kMostCounted) flush(scratch, view.counts);
    }
    if (view.counts) flush(scratch, view.counts);
  }
}

void measure_together(const View* views, std::size_t many, RowMoments* rows, unsigned threads, bool in_team) {
  // Allocate the scratch of the calling thread first: if there is no memory, this line throws instead of a thread.
  static_cast<void>(scratch_of_thread());
  thread_local const std::unique_ptr<Job> job(new Job());
  job->plan(views, many, threads);
  run_together(Job::body, job.get(), job->size(), threads, in_team);
  std::fill_n(rows, many, RowMoments());
  job->merge_into(rows);
}

}  // namespace

void measure(const View* views, std::size_t many, RowMoments* rows, unsigned threads) {
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
