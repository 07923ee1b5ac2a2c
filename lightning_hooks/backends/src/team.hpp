// The threads that torch computes with. Between the operations of a step they are running, and their caches hold what they
// computed: reading it with them takes half as long as reading it on one thread, or less.
//
// Their work ends at a barrier. Where another process occupies a processor, the barrier waits for the scheduler, a millisecond or
// more instead of microseconds. Gains and losses are added up, and while the sum is negative the team is not used.
#pragma once

#include <cstdint>

namespace hooks {

// Fewer elements than this are measured on the calling thread.
constexpr std::int64_t kWorthTeam = 1 << 15;

// Looks up the team in GNU's OpenMP library, which torch has loaded; false where that is absent. This extension does not link
// OpenMP, so the process has one runtime.
bool find_team(const char* library);

// The number of threads that a team of the calling thread would have; 0 where there is no team.
unsigned team_size();

// Whether a team of this size is available, and has paid so far.
bool team_pays(unsigned threads);

// Runs body(argument, index) on every thread of the team and returns when all have ended.
void run_in_team(void (*body)(void*, unsigned), void* argument, std::int64_t bytes);

// Notes the duration of work without the team, so that the team is tried again after a while.
void note_alone(std::int64_t nanoseconds);

}  // namespace hooks
