// Whole tensors, one or many, on one thread or several. The result does not depend on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "view.hpp"

namespace hooks {

constexpr int kBuckets = 509;

// Runs body(argument) on several threads at once and waits for all of them.
using Parallel = void (*)(void (*body)(void*), void* argument, unsigned threads, unsigned flags);

struct Threads {
  unsigned number = 1;
  Parallel run = nullptr;  // `GOMP_parallel` of the OpenMP runtime that torch has loaded; null: threads of our own
};

// Fewer elements than this are measured on the calling thread: waking another takes longer than it saves.
constexpr std::int64_t kWorthThreads = 1 << 16;
constexpr std::int64_t kWorthNewThreads = 1 << 20;  // where every thread has to be started first

// Rows of `many` views, and their histograms where `histograms` is not null ([many, kBuckets]).
void measure(const View* views, std::size_t many, Row* rows, double* histograms, const Threads& threads);

}  // namespace hooks
