#include "units.hpp"

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "pieces.hpp"
#include "ranges.hpp"

namespace hooks {
namespace {

constexpr std::int64_t kShortest = 16;            // elements of a run; shorter runs are read as columns and merged at the end
constexpr std::int64_t kNarrowest = 64;           // columns of a row; several narrower rows are read as one row
constexpr std::int64_t kRowBytes = 1 << 14;       // rows of more bytes are read in strips of this width
constexpr std::int64_t kPadding = 24;             // numbers between the arrays of sums, so that they lie in different sets of the cache
constexpr std::int64_t kTileRows = 24;            // a multiple of kGroup and of kFewRows, the rows that a lane adds up
constexpr std::int64_t kTile = 1 << 15;           // elements whose moments and then units are measured while they are in the cache
constexpr std::int64_t kItems = 32;               // the most items of a tensor, and so the most threads that work on it
constexpr std::int64_t kLeastElements = 1 << 15;  // an item for one thread has at least as many elements
constexpr std::int64_t kLeastRows = 96;           // an item has at least as many rows, because it keeps a sum for each column
constexpr std::int64_t kMostSums = 1 << 18;       // the most columns of all items together; each keeps four float64 sums

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// The work on one tensor, divided into items. Every item has separate sums, which are merged in the order of items.
class UnitJob {
 public:
  void plan(const View& of, const UnitLayout& layout_of) {
    kernels = &blocks();
    view = &of;
    layout = layout_of;
    in_runs = layout.inner >= kShortest;
    const std::int64_t group = layout.units * layout.inner;
    // The tensor is read as `rows` rows of `length` elements. If `in_runs`, a row is the run of one unit; else each element of a row
    // belongs to another column, and a strip is a range of columns.
    merged_rows = in_runs || group >= kNarrowest ? 1 : ceil_div(kNarrowest, group);
    columns = in_runs ? layout.units : merged_rows * group;
    length = in_runs ? layout.inner : columns;
    rows = view->numel / length;
    const bool whole = in_runs || columns * size() <= kRowBytes;
    strip = whole ? columns : kRowBytes / size();
    strips = ceil_div(columns, strip);
    padded = strip + kPadding;
    const std::int64_t by_sums = std::min(kMostSums, view->numel / kLeastRows) / columns;
    groups = std::max<std::int64_t>(1, std::min({kItems / strips, by_sums, view->numel / kLeastElements, rows}));
    moments.assign(static_cast<std::size_t>(whole ? ceil_div(view->numel, kChunk) : strips * groups), RowMoments());
  }
  std::size_t items() const { return static_cast<std::size_t>(strips * groups); }

  void run_alone(RowMoments& row, double* out) {
    sums.assign(static_cast<std::size_t>(4 * padded), 0.0);
    Scratch& scratch = scratch_of_thread();
    if (items() == 1) {
      work_on(0, sums.data(), scratch);
      return finish(row, out, sums.data(), padded);
    }
    totals.assign(static_cast<std::size_t>(4 * columns), 0.0);
    for (std::size_t i = 0; i < items(); ++i) {
      if (i) std::fill(sums.begin(), sums.end(), 0.0);
      work_on(i, sums.data(), scratch);
      add_to_totals(i, sums.data());
    }
    finish(row, out, totals.data(), columns);
  }
  void run_together(RowMoments& row, double* out, unsigned threads, bool in_team) {
    // Allocate the scratch of the calling thread first: if there is no memory, this line throws instead of a thread.
    static_cast<void>(scratch_of_thread());
    sums.assign(items() * static_cast<std::size_t>(4 * padded), 0.0);
    totals.assign(static_cast<std::size_t>(4 * columns), 0.0);
    pieces.plan(items(), [](std::size_t) { return 1; }, 1, threads);
    hooks::run_together(body, this, view->numel * size(), threads, in_team);
    for (std::size_t i = 0; i < items(); ++i) add_to_totals(i, sums_of(i));
    finish(row, out, totals.data(), columns);
  }

 private:
  const Blocks* kernels = nullptr;
  const View* view = nullptr;
  UnitLayout layout;
  bool in_runs = false;
  std::int64_t merged_rows = 1, columns = 0, length = 0, rows = 0, strip = 0, padded = 0, strips = 1, groups = 1;
  std::vector<double> sums, totals;
  std::vector<RowMoments> moments;  // the moments of each chunk of the tensor, or of each item if the tensor is read in strips
  Pieces pieces;
  std::mutex adding;

  std::int64_t size() const { return size_of(view->kind); }
  double* sums_of(std::size_t item) { return sums.data() + item * static_cast<std::size_t>(4 * padded); }
  const char* at(std::int64_t element) const { return view->data + element * size(); }
  Units units_at(double* from, std::int64_t unit) const {
    from += unit;
    return {from, from + padded, from + 2 * padded, from + 3 * padded};
  }

  static void body(void* job, unsigned thread) {
    UnitJob& mine = *static_cast<UnitJob*>(job);
    try {
      Scratch& scratch = scratch_of_thread();
      mine.pieces.take(thread, [&](std::size_t i) { mine.work_on(i, mine.sums_of(i), scratch); });
    } catch (const std::bad_alloc&) {
      // There is no memory for the scratch of this thread, so it has taken no item. The calling thread, which has its scratch,
      // takes all items.
    }
  }

  void work_on(std::size_t item, double* into, Scratch& scratch) {
    const std::int64_t group = static_cast<std::int64_t>(item) % groups, first = static_cast<std::int64_t>(item) / groups * strip;
    // Divide rows at multiples of kTileRows, so that each lane adds up the full number of rows (kGroup or kFewRows).
    const std::int64_t share = in_runs ? 1 : kTileRows, parts = ceil_div(rows, share);
    const std::int64_t begin = std::min(rows, parts * group / groups * share), end = std::min(rows, parts * (group + 1) / groups * share);
    if (in_runs) {
      work_on_runs(begin, end, into, scratch);
    } else if (strips > 1) {
      work_on_strip(begin, end, first, into, moments[item], scratch);
    } else {
      work_on_rows(begin, end, into, scratch);
    }
    flush_counts(scratch);
  }
  void flush_counts(Scratch& scratch) {
    if (!view->counts) return;
    const std::lock_guard<std::mutex> locked(adding);
    flush(scratch, view->counts);
  }

  // Measures the moments of the chunks that begin in [begin, end). Chunks are the same as without units, so that moments are rounded
  // in the same way. Returns whether the range may hold zeros. The first elements of the range may belong to the previous chunk;
  // `before` says whether that chunk may hold zeros.
  bool measure_chunks(std::int64_t begin, std::int64_t end, bool before, Scratch& scratch) {
    const std::int64_t first = ceil_div(begin, kChunk);
    bool zeros = before && first * kChunk > begin;
    for (std::int64_t chunk = first; chunk * kChunk < end; ++chunk) {
      const std::int64_t last = std::min(view->numel, (chunk + 1) * kChunk);
      RowMoments& row = moments[static_cast<std::size_t>(chunk)];
      row = measure_range(*kernels, *view, chunk * kChunk, last, scratch);
      zeros = zeros || row.zeros != 0;
    }
    if (scratch.counted >= kMostCounted) flush_counts(scratch);
    return zeros;
  }

  // The end of the first tile of an item, in rows or runs of n elements. If the item begins inside a chunk, another item measures
  // that chunk, so this item does not know whether the chunk has zeros. Then the first tile ends with the chunk.
  static std::int64_t end_of_first(std::int64_t begin, std::int64_t tile, std::int64_t n) {
    const std::int64_t known = ceil_div(ceil_div(begin * n, kChunk) * kChunk, n);
    return known > begin ? std::min(known, begin + tile) : begin + tile;
  }

  void work_on_rows(std::int64_t begin, std::int64_t end, double* into, Scratch& scratch) {
    const std::int64_t tile = std::max<std::int64_t>(1, kTile / columns / kTileRows) * kTileRows;
    const int n = static_cast<int>(columns);
    // Whether the chunk at `row` has zeros. Another thread may measure the chunk in which this range of rows begins; then assume zeros:
    // counting them costs time, and leaving them out would give wrong numbers.
    bool zeros = true;
    for (std::int64_t row = begin, last; row < end; row = last) {
      last = std::min(end, row == begin ? end_of_first(row, tile, columns) : row + tile);
      zeros = measure_chunks(row * columns, last * columns, zeros, scratch);
      kernels->columns(view->kind, at(row * columns), last - row, columns, n, zeros, units_at(into, 0));
    }
    // The item with the last row also reads the rest of the tensor, which is shorter than a row.
    if (end == rows && rows * columns < view->numel) {
      zeros = measure_chunks(rows * columns, view->numel, zeros, scratch);
      const int rest = static_cast<int>(view->numel - rows * columns);
      kernels->columns(view->kind, at(rows * columns), 1, rest, rest, zeros, units_at(into, 0));
    }
  }
  void work_on_strip(std::int64_t begin, std::int64_t end, std::int64_t first, double* into, RowMoments& row_of_strip, Scratch& scratch) {
    const std::int64_t n = std::min(strip, columns - first);
    for (std::int64_t row = begin; row < end; row += kTileRows) {
      const std::int64_t last = std::min(end, row + kTileRows);
      bool zeros = false;
      for (std::int64_t each = row; each < last; ++each) {
        const std::int64_t from = each * columns + first;
        const RowMoments found = measure_range(*kernels, *view, from, from + n, scratch);
        zeros = zeros || found.zeros != 0;
        merge(row_of_strip, found);
      }
      if (scratch.counted >= kMostCounted) flush_counts(scratch);
      kernels->columns(view->kind, at(row * columns + first), last - row, columns, static_cast<int>(n), zeros, units_at(into, 0));
    }
  }
  void work_on_runs(std::int64_t begin, std::int64_t end, double* into, Scratch& scratch) {
    const std::int64_t tile = std::max<std::int64_t>(1, kTile / length);
    bool zeros = true;  // assumed of the chunk in which the item begins, which another item measures
    for (std::int64_t run = begin, last; run < end; run = last) {
      last = std::min(end, run == begin ? end_of_first(run, tile, length) : run + tile);
      // If a run is longer than a tile, read the run in several pieces.
      for (std::int64_t offset = 0; offset < length; offset += kTile) {
        const std::int64_t part = std::min(length, offset + kTile) - offset;
        const std::int64_t from = run * length + offset, to = (last - 1) * length + offset + part;
        zeros = measure_chunks(from, to, zeros, scratch);
        for (std::int64_t here = run; here < last;) {
          const std::int64_t unit = here % columns, many = std::min(last - here, columns - unit);
          kernels->runs(view->kind, at(here * length + offset), many, part, zeros, units_at(into, unit));
          here += many;
        }
      }
    }
  }

  void add_to_totals(std::size_t item, const double* from) {
    const std::int64_t first = static_cast<std::int64_t>(item) / groups * strip, n = std::min(strip, columns - first);
    for (int column = 0; column < 4; ++column, from += padded) {
      double* const into = totals.data() + column * columns + first;
      if (column == 2) {
        for (std::int64_t k = 0; k < n; ++k) into[k] = greatest(into[k], from[k]);
      } else {
        for (std::int64_t k = 0; k < n; ++k) into[k] += from[k];
      }
    }
  }
  // Writes the moments and units of the tensor from the sums of all columns, four arrays that begin `apart` numbers from each other.
  void finish(RowMoments& row, double* out, const double* from, std::int64_t apart) {
    row = RowMoments();
    for (const RowMoments& each : moments) merge(row, each);
    if (!view->sized) row.abs_sum = std::numeric_limits<double>::quiet_NaN();
    if (columns == layout.units) {
      for (std::int64_t k = 0; k < columns; ++k, out += kUnitColumns) {
        for (int column = 0; column < 4; ++column) out[column] = from[column * apart + k];
      }
      return;
    }
    const std::int64_t together = layout.inner;
    std::fill_n(out, kUnitColumns * static_cast<std::size_t>(layout.units), 0.0);
    for (std::int64_t column = 0; column < columns;) {
      for (std::int64_t unit = 0; unit < layout.units; ++unit) {
        for (std::int64_t k = 0; k < together; ++k, ++column) {
          const double found[] = {from[column], from[apart + column], from[2 * apart + column], from[3 * apart + column]};
          merge_units(out + 4 * unit, found, 1);
        }
      }
    }
  }
};

}  // namespace

void merge_units(double* into, const double* from, std::int64_t units) {
  for (std::int64_t unit = 0; unit < units; ++unit, into += kUnitColumns, from += kUnitColumns) {
    into[0] += from[0];
    into[1] += from[1];
    into[2] = greatest(into[2], from[2]);
    into[3] += from[3];
  }
}

void measure_units(const View& view, const UnitLayout& layout, RowMoments& row, double* units, unsigned threads) {
  if (view.counts) std::fill_n(view.counts, kBuckets, 0.0);
  if (view.numel == 0) {
    row = RowMoments();
    std::fill_n(units, kUnitColumns * static_cast<std::size_t>(layout.units), 0.0);
    return;
  }
  thread_local const std::unique_ptr<UnitJob> job(new UnitJob());
  job->plan(view, layout);
  share(
      job->items() == 1 ? 0 : view.numel, threads, [&] { job->run_alone(row, units); },
      [&](bool in_team) { job->run_together(row, units, threads, in_team); });
}

}  // namespace hooks
