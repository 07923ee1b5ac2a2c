#include "team.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>

#if defined(__unix__) || defined(__APPLE__)
#include <dlfcn.h>
#include <pthread.h>
#endif

namespace hooks {
namespace {

struct Runtime {
  void (*parallel)(void (*)(void*), void*, unsigned threads, unsigned flags) = nullptr;
  int (*index)() = nullptr;
  int (*size)() = nullptr;
  int (*inside)() = nullptr;
};
Runtime runtime;
std::atomic<bool> found{false};

#if defined(__unix__) || defined(__APPLE__)
// A forked child has none of the threads of the team, and must not wait for them.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { found.store(false); });

template <class Function>
bool look_up(void* library, const char* name, Function& out) {
  out = reinterpret_cast<Function>(dlsym(library, name));
  return out != nullptr;
}
#endif

// `gain` is the time that the team has saved minus the time lost by waiting, in nanoseconds. While `gain` < 0 the team is not used.
constexpr std::int64_t kMostGain = 5'000'000;  // nanoseconds; bounds `gain`, so that old gains do not outweigh long waiting
constexpr std::int64_t kExpected = 50'000;     // nanoseconds; a job that takes longer than this plus 0.25 per byte has waited
// While `gain` < 0, add 1/64 of the time spent without the team to `gain`, so that the team is tried again.
constexpr std::int64_t kRecovery = 64;
std::atomic<std::int64_t> gain{kMostGain};

struct Work {
  void (*body)(void*, unsigned);
  void* argument;
};
void take_part(void* work) {
  const Work& mine = *static_cast<const Work*>(work);
  mine.body(mine.argument, static_cast<unsigned>(runtime.index()));
}

}  // namespace

bool find_team([[maybe_unused]] const char* library) {
#if defined(__unix__) || defined(__APPLE__)
  // Only find the OpenMP library that torch has loaded: with RTLD_NOLOAD `dlopen` never loads a second one.
  void* const loaded = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
  if (!loaded) return false;
  found = look_up(loaded, "GOMP_parallel", runtime.parallel) && look_up(loaded, "omp_get_thread_num", runtime.index) &&
          look_up(loaded, "omp_get_max_threads", runtime.size) && look_up(loaded, "omp_in_parallel", runtime.inside);
#endif
  return found;
}

unsigned team_size() { return found.load(std::memory_order_relaxed) ? static_cast<unsigned>(runtime.size()) : 0; }

bool team_pays(unsigned threads) {
  // Require the size that torch uses: for a team of another size, the OpenMP runtime would end or start threads of torch.
  return found.load(std::memory_order_relaxed) && gain.load(std::memory_order_relaxed) >= 0 &&
         runtime.size() == static_cast<int>(threads) && !runtime.inside();
}

void run_in_team(void (*body)(void*, unsigned), void* argument, std::int64_t bytes) {
  Work work{body, argument};
  const auto begin = std::chrono::steady_clock::now();
  runtime.parallel(take_part, &work, 0, 0);
  const std::int64_t took = std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
  const bool waited = took > kExpected + bytes / 4;
  // A team of two halves the time of one thread, so it has saved as much time as it took. A larger team saves more; ignore that.
  gain = std::min(gain.load(std::memory_order_relaxed) + (waited ? -took : took), kMostGain);
}

void note_alone(std::int64_t nanoseconds) {
  if (gain.load(std::memory_order_relaxed) < 0) gain += nanoseconds / kRecovery;
}

}  // namespace hooks
