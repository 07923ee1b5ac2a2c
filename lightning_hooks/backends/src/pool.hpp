// Threads of our own to share work with, where torch's are not to be had (team.hpp). A second OpenMP runtime beside torch's
// would fight it for the processors. Of ours, one that comes late finds nothing left and is not waited for. No thread survives
// a fork: they are started anew in the child.
#pragma once

namespace hooks {

// Runs body(argument, its index) on this thread and, as they wake up, on up to `threads` - 1 others; returns when all that
// began have ended. The body shares its work out by itself.
void run_parallel(void (*body)(void*, unsigned), void* argument, unsigned threads);

}  // namespace hooks
