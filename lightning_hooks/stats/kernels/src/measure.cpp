#include "measure.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "blocks.hpp"
#include "pool.hpp"
#include "team.hpp"

namespace hooks {
namespace {

constexpr std::int64_t kChunk = 2 * kBlock;   // what a thread takes at a time
constexpr int kMiddle = kBuckets / 2;         // the bucket of zeros and of magnitudes below the normal numbers
constexpr int kExponents = kKeys / 2;
constexpr std::int64_t kMostCounted = std::int64_t(1) << 31;  // elements, before the tables are emptied: their numbers have 32 bits

using Tables = std::uint32_t[kTables][kKeys];

struct Scratch {
  alignas(64) std::uint64_t buffer[kBlock];
  Tables tables;
  int used = 0;              // tables that are not all zeros, from the first one on
  std::int64_t counted = 0;  // elements in them
  Spread spread;             // of the tensor
};

// The row of the elements begin to end; where a histogram is wanted, counts them while they are in the cache.
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
      scratch.used = std::max(scratch.used, kernels.count(view.kind, data, n, scratch.tables, scratch.spread));
      scratch.counted += n;
    }
    merge(out, part);
    begin += n;
  }
  return out;
}

// Asks for the beginning of what is read next: the processor itself follows a tensor only after some misses.
void fetch(const View& view, std::int64_t begin) {
  if (!view.gaps.empty()) return;
  const std::int64_t size = size_of(view.minus ? view.stored : view.kind);
  const std::int64_t bytes = std::min<std::int64_t>((view.numel - begin) * size, 1024);
  for (std::int64_t offset = 0; offset < bytes; offset += 64) __builtin_prefetch(view.data + begin * size + offset);
}

// One for each thread, kept: setting it up takes longer than measuring a small tensor. The tables are left empty after use.
Scratch& scratch_of_thread() {
  thread_local const std::unique_ptr<Scratch> scratch(new Scratch());
  return *scratch;
}

// Adds the tables of keys to the buckets and empties them.
void empty(Scratch& scratch, double* buckets) {
  std::int64_t sums[kKeys] = {};  // signed, which become float64 at once
  for (int table = 0; table < scratch.used; ++table) {
    for (int key = 0; key < kKeys; ++key) sums[key] += scratch.tables[table][key];
  }
  std::fill_n(&scratch.tables[0][0], scratch.used * kKeys, 0u);
  scratch.used = 0;
  scratch.counted = 0;
  scratch.spread = Spread();
  for (int exponent = 0; exponent < kExponents - 1; ++exponent) {  // the last one: NaN and infinities, in no bucket
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

struct Task {
  std::size_t view;
  std::int64_t begin, end;
};

// What several threads do together; kept by the thread that asks for it, so that a tensor costs no allocation.
class Job {
 public:
  void plan(const View* of, std::size_t many, unsigned helpers) {
    kernels = &blocks();
    views = of;
    threads = helpers;
    tasks.clear();
    bytes = 0;
    for (std::size_t i = 0; i < many; ++i) {
      for (std::int64_t begin = 0; begin < views[i].numel; begin += kChunk) {
        tasks.push_back({i, begin, std::min(views[i].numel, begin + kChunk)});
      }
      bytes += views[i].numel * size_of(views[i].kind);
    }
    rows.resize(tasks.size());
    if (room < tasks.size()) {
      room = 0;
      taken.reset(new std::atomic<bool>[tasks.size()]);
      room = tasks.size();
    }
    for (std::size_t i = 0; i < tasks.size(); ++i) taken[i].store(false, std::memory_order_relaxed);
  }
  void merge_into(Row* out) const {
    for (std::size_t i = 0; i < tasks.size(); ++i) merge(out[tasks[i].view], rows[i]);
  }
  std::int64_t size() const { return bytes; }
  static void body(void* job, unsigned thread) {
    try {
      static_cast<Job*>(job)->work(thread);
    } catch (const std::bad_alloc&) {
      // No room for its scratch, so it took nothing; the calling thread has its own already.
    }
  }

 private:
  const Blocks* kernels = nullptr;
  const View* views = nullptr;
  std::vector<Task> tasks;
  std::vector<Row> rows;
  std::mutex adding;
  unsigned threads = 1;
  std::int64_t bytes = 0;
  std::unique_ptr<std::atomic<bool>[]> taken;
  std::size_t room = 0;

  // Begins where torch would have this thread begin, whose cache may hold it; then helps the others.
  void work(unsigned thread) {
    Scratch& scratch = scratch_of_thread();
    std::size_t counted = tasks.size();  // the task whose view is in the tables
    const auto settle = [&] {
      if (counted < tasks.size() && views[tasks[counted].view].counts) {
        const std::lock_guard<std::mutex> locked(adding);
        empty(scratch, views[tasks[counted].view].counts);
      }
    };
    const std::size_t first = tasks.size() * (thread % threads) / threads;
    for (std::size_t step = 0; step < tasks.size(); ++step) {
      const std::size_t i = first + step < tasks.size() ? first + step : first + step - tasks.size();
      if (taken[i].load(std::memory_order_relaxed) || taken[i].exchange(true)) continue;
      if (i + 1 < tasks.size()) fetch(views[tasks[i + 1].view], tasks[i + 1].begin);
      const Task& task = tasks[i];
      if (counted < tasks.size() && tasks[counted].view != task.view) settle();
      rows[i] = measure_range(*kernels, views[task.view], task.begin, task.end, scratch);
      counted = i;
      if (scratch.counted >= kMostCounted) settle();
    }
    settle();
  }
};

// On the calling thread, in the same pieces as several threads would take, so that the rounding is the same.
void measure_alone(const View* views, std::size_t many, Row* rows) {
  const Blocks& kernels = blocks();
  Scratch& scratch = scratch_of_thread();
  for (std::size_t i = 0; i < many; ++i) {
    const View& view = views[i];
    rows[i] = Row();
    for (std::int64_t begin = 0; begin < view.numel; begin += kChunk) {
      const std::int64_t end = std::min(view.numel, begin + kChunk);
      merge(rows[i], measure_range(kernels, view, begin, end, scratch));
      if (scratch.counted >= kMostCounted) empty(scratch, view.counts);
    }
    if (view.counts) empty(scratch, view.counts);
  }
}

void measure_together(const View* views, std::size_t many, Row* rows, unsigned threads, bool in_team) {
  static_cast<void>(scratch_of_thread());  // an error now, not among the others
  thread_local const std::unique_ptr<Job> job(new Job());
  job->plan(views, many, threads);
  if (in_team) {
    run_in_team(Job::body, job.get(), job->size());
  } else {
    run_parallel(Job::body, job.get(), threads);
  }
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
  if (threads <= 1 || elements < kWorthTeam) {
    measure_alone(views, many, rows);
  } else if (team_pays(threads)) {
    measure_together(views, many, rows, threads, true);
  } else {
    const auto begin = std::chrono::steady_clock::now();
    if (elements >= kWorthThreads) {
      measure_together(views, many, rows, threads, false);
    } else {
      measure_alone(views, many, rows);
    }
    note_alone(std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count());
  }
  for (std::size_t i = 0; i < many; ++i) {
    if (!views[i].sized) rows[i].abs_sum = std::numeric_limits<double>::quiet_NaN();
    const double copies = views[i].copies;
    if (copies == 1) continue;
    repeat(rows[i], copies);
    if (views[i].counts) std::for_each_n(views[i].counts, kBuckets, [copies](double& bucket) { bucket *= copies; });
  }
}

}  // namespace hooks
