// Threads to share work with: those of torch, where they can be had, else our own, which wait for work. A second OpenMP
// runtime beside torch's would fight it for the processors, and no runtime's threads survive a fork; ours are started anew in
// the child.
#pragma once

namespace hooks {

// Whether the threads are those of torch: awake while it computes, so that little work is worth sharing.
bool has_team(unsigned threads);

// Runs body(argument, its index) on this thread and, as they wake up, on up to `threads` - 1 others; returns when all that
// began have ended. The body shares its work out by itself: one of ours that comes late finds nothing left and is not waited
// for.
void run_parallel(void (*body)(void*, unsigned), void* argument, unsigned threads);

}  // namespace hooks
