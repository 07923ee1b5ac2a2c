// Threads of our own that wait for work. A second OpenMP runtime beside torch's would fight it for the processors, and its
// threads do not survive a fork; these are started anew in the child.
#pragma once

namespace hooks {

// Runs body(argument) on this thread and, as they wake up, on up to `threads` - 1 others; returns when all that began have
// ended. The body shares its work out by itself: who comes late finds nothing left and is not waited for.
void run_parallel(void (*body)(void*), void* argument, unsigned threads);

}  // namespace hooks
