// The threads that torch computes with. Between the operations of a step they are awake, and what they computed lies in their
// caches: reading it together with them takes half as long as reading it alone, or less.
//
// The end of their work is a barrier. Where another process has a processor, it waits for the scheduler, a millisecond or more
// instead of microseconds; so what is gained and what is lost is added up, and while there is no gain left they are not asked.
#pragma once

#include <cstdint>

namespace hooks {

// Fewer elements than this are measured on the calling thread.
constexpr std::int64_t kWorthTeam = 1 << 15;

// Looks for the team in a library that torch has loaded, GNU's OpenMP; false where it is not there. Nothing of OpenMP is linked
// in, so there is one runtime in the process.
bool find_team(const char* library);

// How many threads the team would have if the calling thread asked it; 0 where there is none.
unsigned team_size();

// Whether a team of so many threads can be asked, and asking has paid so far.
bool team_pays(unsigned threads);

// Runs body(argument, its index) on every thread of the team and returns when all have ended.
void run_in_team(void (*body)(void*, unsigned), void* argument, std::int64_t bytes);

// Notes how long work took that was done without the team, so that it is asked again after a while.
void note_alone(std::int64_t nanoseconds);

}  // namespace hooks
