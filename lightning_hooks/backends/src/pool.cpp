#include "pool.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <signal.h>
#endif

namespace hooks {
namespace {

// Blocks all signals in threads that are started while the object exists, because only Python's threads handle signals.
class SignalsBlocked {
 public:
#if defined(__unix__) || defined(__APPLE__)
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
#endif
};

class Pool {
 public:
  void run(void (*body)(void*, unsigned), void* argument, unsigned threads) {
    const std::unique_lock<std::mutex> mine(running_, std::try_to_lock);
    // If another Python thread uses the pool, do the whole job on this thread.
    if (!mine.owns_lock()) return body(argument, 0);
    {
      const std::lock_guard<std::mutex> locked(state_);
      start(threads - 1);
      body_ = body;
      argument_ = argument;
      wanted_ = threads - 1;
    }
    if (threads == 2) {
      notified_.notify_one();
    } else {
      notified_.notify_all();
    }
    body(argument, 0);
    std::unique_lock<std::mutex> locked(state_);
    wanted_ = 0;
    ended_.wait(locked, [this] { return busy_ == 0; });
  }

 private:
  void start(unsigned helpers) {
    [[maybe_unused]] const SignalsBlocked blocked;
    try {
      for (; started_ < helpers; ++started_) std::thread(&Pool::serve, this).detach();
    } catch (const std::system_error&) {
      // The system refuses to start another thread. The threads that were started before do the work.
    }
  }

  void serve() {
    std::unique_lock<std::mutex> locked(state_);
    while (true) {
      notified_.wait(locked, [this] { return wanted_ > 0; });
      const unsigned index = wanted_--;
      ++busy_;
      locked.unlock();
      body_(argument_, index);
      locked.lock();
      if (--busy_ == 0) ended_.notify_one();
    }
  }

  std::mutex running_;  // held while a job runs
  std::mutex state_;    // guards all members below
  std::condition_variable notified_, ended_;
  void (*body_)(void*, unsigned) = nullptr;
  void* argument_ = nullptr;
  unsigned started_ = 0, wanted_ = 0, busy_ = 0;
};

// The pool is never destroyed: at the end of the process, its threads still wait for its condition variable.
std::atomic<Pool*> pool{nullptr};

#if defined(__unix__) || defined(__APPLE__)
// A forked child has none of the pool's threads, and the state of the pool is unknown. The child abandons the pool, and creates
// another one when a job needs it.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] {
  pool.store(nullptr);
});
#endif

Pool& pool_of_process() {
  Pool* known = pool.load();
  if (known) return *known;
  Pool* const made = new Pool();
  if (pool.compare_exchange_strong(known, made)) return *made;
  // Another thread has stored its pool in the meantime: `known` is that pool now.
  delete made;
  return *known;
}

}  // namespace

void run_parallel(void (*body)(void*, unsigned), void* argument, unsigned threads) {
  pool_of_process().run(body, argument, threads);
}

}  // namespace hooks
