// A pool of threads of this extension, which serves if the threads of torch are not available (team.hpp). The pool does not use
// OpenMP: a second OpenMP runtime would compete with that of torch for the processors. A thread that starts late finds no work, and
// the caller does not wait for it. No thread survives a fork, so a forked child starts new threads.
#pragma once

namespace hooks {

// Runs body(argument, index) on this thread and, as the system schedules them, on up to `threads` - 1 threads of the pool. Returns
// when every call that began has ended. The body divides the work among its calls.
void run_parallel(void (*body)(void*, unsigned), void* argument, unsigned threads);

}  // namespace hooks
