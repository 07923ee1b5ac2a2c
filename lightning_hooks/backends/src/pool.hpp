// Threads of our own, for where torch's are not available (team.hpp). A second OpenMP runtime beside torch's would compete with it
// for the processors. A thread that starts late finds no work and is not waited for. No thread survives a fork: the child starts
// its own.
#pragma once

namespace hooks {

// Runs body(argument, index) on this thread and, as they are scheduled, on up to `threads` - 1 others; returns when all that began
// have ended. The body divides the work itself.
void run_parallel(void (*body)(void*, unsigned), void* argument, unsigned threads);

}  // namespace hooks
