// Whole tensors, one or many, on one thread or several. The result does not depend on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "view.hpp"

namespace hooks {

constexpr int kBuckets = 509;

// Fewer elements than this are not worth waking a thread of our own: that takes longer than it saves.
constexpr std::int64_t kWorthThreads = 1 << 17;

// Rows of `many` views, and the histograms of those that want one.
void measure(const View* views, std::size_t many, Row* rows, unsigned threads);

}  // namespace hooks
