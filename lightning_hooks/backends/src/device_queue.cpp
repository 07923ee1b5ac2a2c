#include "device_queue.hpp"

namespace hooks {
namespace {

constexpr std::size_t kMostNumbers = 3 * kTogether + kScratch;

}  // namespace

std::int64_t steps_of(const Spread& spread, std::int64_t size) {
  return blocks_of_span(divided_up(size, spread.block), spread.programs, spread.most_blocks);
}

std::int64_t programs_of(const Spread& spread, std::int64_t size) {
  return divided_up(divided_up(size, spread.block), steps_of(spread, size));
}

bool takes(const Queue& queue, void* stream) {
  const bool is_empty = queue.spans.empty() && queue.launching == 0 && queue.late.programs == 0;
  return is_empty || stream == queue.stream;
}

std::int64_t reserve(Queue& queue, std::int64_t programs, void* stream) {
  if (!takes(queue, stream) || programs > queue.capacity - queue.used - queue.late.programs) return -1;
  // Make room for the spans of all launches, so that adding them cannot fail.
  queue.spans.reserve(queue.spans.size() + kTogether * (static_cast<std::size_t>(queue.launching) + 1));
  queue.stream = stream;
  ++queue.launching;
  const std::int64_t first = queue.used;
  queue.used += programs;
  return first;
}

void settle(Queue& queue, std::int64_t first, std::int64_t end, bool is_launched) {
  --queue.launching;
  if (!is_launched && queue.used == end) queue.used = first;
}

bool is_capturing(const Queue& queue, void* stream) {
  int status = 0;
  return queue.driver.is_capturing(stream, &status) != 0 || status != 0;
}

bool is_ready(const Queue& queue, void* context, void* stream) {
  void* current = nullptr;
  return queue.driver.context(&current) == 0 && current == context && !is_capturing(queue, stream);
}

bool call_driver(const Queue& queue, const Kernel& kernel, std::int64_t programs, void* stream, std::int64_t* numbers, std::size_t many) {
  // Copy what is needed, because other threads may change the queue while the interpreter lock is released.
  const Kernel launched = kernel;
  const auto launch = queue.driver.launch;
  void* parameters[kMostNumbers];
  for (std::size_t i = 0; i < many; ++i) parameters[i] = &numbers[i];
  // The driver waits if its queue is full, and the device may then wait for a thread that needs the interpreter lock.
  PyThreadState* const released = PyEval_SaveThread();
  const int status = launch(launched.function, static_cast<unsigned>(programs), 1, 1, launched.threads, 1, 1, launched.shared, stream,
                            parameters, nullptr);
  PyEval_RestoreThread(released);
  return status == 0;
}

}  // namespace hooks
