#include "pool.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#if defined(__unix__) || defined(__APPLE__)
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#endif

namespace hooks {
namespace {

// Signals are for Python's threads: while this lives, threads that are started here leave them alone.
class SignalsHeld {
 public:
#if defined(__unix__) || defined(__APPLE__)
  SignalsHeld() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsHeld() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
#endif
};

class Pool {
 public:
  void run(void (*body)(void*, unsigned), void* argument, unsigned threads) {
    const std::unique_lock<std::mutex> mine(running_, std::try_to_lock);
    if (!mine.owns_lock()) return body(argument, 0);  // another thread of Python has the helpers
    {
      const std::lock_guard<std::mutex> locked(state_);
      start(threads - 1);
      body_ = body;
      argument_ = argument;
      wanted_ = threads - 1;
    }
    if (threads == 2) {
      woken_.notify_one();
    } else {
      woken_.notify_all();
    }
    body(argument, 0);
    std::unique_lock<std::mutex> locked(state_);
    wanted_ = 0;
    ended_.wait(locked, [this] { return busy_ == 0; });
  }

 private:
  void start(unsigned helpers) {
    const SignalsHeld held;
    try {
      for (; started_ < helpers; ++started_) std::thread(&Pool::serve, this).detach();
    } catch (const std::system_error&) {
      // No more threads to be had: those there are do the work.
    }
  }

  void serve() {
    std::unique_lock<std::mutex> locked(state_);
    while (true) {
      woken_.wait(locked, [this] { return wanted_ > 0; });
      const unsigned index = wanted_--;
      ++busy_;
      locked.unlock();
      body_(argument_, index);
      locked.lock();
      if (--busy_ == 0) ended_.notify_one();
    }
  }

  std::mutex running_;  // held for a whole job
  std::mutex state_;    // guards what follows
  std::condition_variable woken_, ended_;
  void (*body_)(void*, unsigned) = nullptr;
  void* argument_ = nullptr;
  unsigned started_ = 0, wanted_ = 0, busy_ = 0;
};

#if defined(__unix__) || defined(__APPLE__)
// The team of threads that torch computes with, where its OpenMP is GNU's. Between the operations of a step they are awake, and
// what they computed lies in their caches. Looked up in the process: nothing of OpenMP is linked in, so there is one runtime.
struct Team {
  void (*parallel)(void (*)(void*), void*, unsigned threads, unsigned flags) = nullptr;
  int (*index)() = nullptr;
  int (*size)() = nullptr;
  int (*inside)() = nullptr;

  Team() {
    find(parallel, "GOMP_parallel");
    find(index, "omp_get_thread_num");
    find(size, "omp_get_max_threads");
    find(inside, "omp_in_parallel");
  }
  bool found() const { return parallel && index && size && inside; }

 private:
  template <class Function>
  static void find(Function& out, const char* name) {
    out = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  }
};
const Team& team() {
  static const Team found;
  return found;
}
std::atomic<bool> forked{false};  // the child of a fork has none of the team's threads, and must not wait for them

struct Work {
  void (*body)(void*, unsigned);
  void* argument;
};
void take_part(void* work) {
  const Work& mine = *static_cast<const Work*>(work);
  mine.body(mine.argument, static_cast<unsigned>(team().index()));
}
#endif

// Never destroyed: at the end of the process its threads still wait in it.
std::atomic<Pool*> pool{nullptr};

#if defined(__unix__) || defined(__APPLE__)
// A forked child has none of the threads: it leaves the pool alone, whatever state it was in, and makes another at need.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] {
  pool.store(nullptr);
  forked.store(true);
});
#endif

Pool& pool_of_process() {
  Pool* known = pool.load();
  if (known) return *known;
  Pool* const made = new Pool();
  if (pool.compare_exchange_strong(known, made)) return *made;
  delete made;  // another thread was first
  return *known;
}

}  // namespace

bool has_team(unsigned threads) {
#if defined(__unix__) || defined(__APPLE__)
  // A team of another size would end some of torch's threads, or start more.
  return !forked.load(std::memory_order_relaxed) && team().found() && team().size() == static_cast<int>(threads) &&
         !team().inside();
#else
  return static_cast<void>(threads), false;
#endif
}

void run_parallel(void (*body)(void*, unsigned), void* argument, unsigned threads) {
#if defined(__unix__) || defined(__APPLE__)
  if (has_team(threads)) {
    Work work{body, argument};
    return team().parallel(take_part, &work, 0, 0);
  }
#endif
  pool_of_process().run(body, argument, threads);
}

}  // namespace hooks
