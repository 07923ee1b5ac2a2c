// The measurement of tensors, one or many, on one thread or several. The result does not depend on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "view.hpp"

namespace hooks {

constexpr int kBuckets = 509;

// With fewer elements than this, notifying a thread of our own takes longer than it saves.
constexpr std::int64_t kWorthThreads = 1 << 17;

// The rows of `many` views, and the histograms of those that have `counts`.
void measure(const View* views, std::size_t many, Row* rows, unsigned threads);

}  // namespace hooks
