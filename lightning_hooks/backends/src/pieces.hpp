// A list of items that is divided into pieces, which several threads take one after another.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "measure.hpp"
#include "pool.hpp"
#include "team.hpp"

namespace hooks {

struct Piece {
  std::size_t of;  // index of the item that the piece belongs to
  std::int64_t begin, end;
};

// The pieces of one job. The planning thread keeps the object between jobs, so that a job needs no allocation.
class Pieces {
 public:
  // Divides items into pieces. Arguments: the number of items, size(i) of each, the largest size of a piece, the number of threads.
  template <class Size>
  void plan(std::size_t many, Size size, std::int64_t most, unsigned threads) {
    threads_ = threads;
    pieces_.clear();
    for (std::size_t i = 0; i < many; ++i) {
      const std::int64_t end = size(i);
      for (std::int64_t begin = 0; begin < end; begin += most) pieces_.push_back({i, begin, std::min(end, begin + most)});
    }
    if (capacity_ < pieces_.size()) {
      capacity_ = 0;
      taken_.reset(new std::atomic<bool>[pieces_.size()]);
      capacity_ = pieces_.size();
    }
    for (std::size_t i = 0; i < pieces_.size(); ++i) taken_[i].store(false, std::memory_order_relaxed);
  }

  std::size_t size() const { return pieces_.size(); }
  const Piece& operator[](std::size_t i) const { return pieces_[i]; }

  // Calls each(i) for the pieces that a thread takes. A thread begins with the share that torch would give to it, which its cache may
  // hold, and then takes pieces of the other threads.
  template <class Each>
  void take(unsigned thread, Each each) {
    const std::size_t first = pieces_.size() * (thread % threads_) / threads_;
    for (std::size_t step = 0; step < pieces_.size(); ++step) {
      const std::size_t i = first + step < pieces_.size() ? first + step : first + step - pieces_.size();
      if (!taken_[i].load(std::memory_order_relaxed) && !taken_[i].exchange(true)) each(i);
    }
  }

 private:
  std::vector<Piece> pieces_;
  unsigned threads_ = 1;
  std::unique_ptr<std::atomic<bool>[]> taken_;
  std::size_t capacity_ = 0;
};

// Calls alone() for few elements. For many it calls together(in_team): with the threads of torch if `team_pays`, else with the pool.
template <class Alone, class Together>
void share(std::int64_t elements, unsigned threads, Alone alone, Together together) {
  if (threads <= 1 || elements < kWorthTeam) return alone();
  if (team_pays(threads)) return together(true);
  const auto begin = std::chrono::steady_clock::now();
  if (elements >= kWorthThreads) {
    together(false);
  } else {
    alone();
  }
  note_alone(std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count());
}

// Runs body(job, thread) on several threads.
inline void run_together(void (*body)(void*, unsigned), void* job, std::int64_t bytes, unsigned threads, bool in_team) {
  if (in_team) {
    run_in_team(body, job, bytes);
  } else {
    run_parallel(body, job, threads);
  }
}

}  // namespace hooks
