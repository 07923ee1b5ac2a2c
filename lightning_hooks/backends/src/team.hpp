// The team: the threads with which torch computes. Between the operations of a step these threads keep running, and their caches hold
// the elements that they computed. So measuring a tensor on the team takes at most half as long as on one thread.
//
// The work of a team ends at a barrier. If another process occupies a processor, the barrier waits for the scheduler: a millisecond or
// more instead of microseconds. Gains and losses are added up, and the team is not used while the sum is negative.
#pragma once

#include <cstdint>

namespace hooks {

// Tensors with fewer elements are measured on the calling thread.
constexpr std::int64_t kWorthTeam = 1 << 15;

// Looks up the functions that start and join threads in the OpenMP library at this path, or returns false if torch has not loaded it.
// This extension does not link OpenMP, so the process has a single OpenMP runtime.
bool find_team(const char* library);

// The number of threads that a team of the calling thread would have; 0 if there is no team.
unsigned team_size();

// Whether a team of this size is available, and has saved more time than it has lost.
bool team_pays(unsigned threads);

// Runs body(argument, index) on every thread of the team and returns when all have ended.
void run_in_team(void (*body)(void*, unsigned), void* argument, std::int64_t bytes);

// Notes the duration of work without the team, so that the team is tried again after a while.
void note_alone(std::int64_t nanoseconds);

}  // namespace hooks
