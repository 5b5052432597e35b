// Scheduler of the emulated threads: one fiber per thread of a block. A seed determines the order in which they run; a
// thread runs until it waits for another one or ends.
#pragma once
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

namespace emu {

// `ready`: can run. `done`: has ended. Otherwise the thread waits at a barrier of the block, a named barrier, with
// other lanes of its warp, for an mbarrier, for wgmmas (`products`), at the cluster's barrier, or for registers
// (setmaxnreg).
enum class State : unsigned char { ready, barrier, named, warp, mbarrier, products, cluster, registers, done };

struct Fiber {
  ucontext_t context;
  jmp_buf resume;
  unsigned char* stack = nullptr;
  bool started = false;
  State state = State::done;
  // Operation at which the thread waits; `mask` and `barrier_id` mean different things for each state.
  int line = 0;
  const char* name = "";
  unsigned mask = 0, barrier_id = 0, barrier_threads = 0;
  int source = 0;
  unsigned long long value = 0, result = 0;
};

// Reason for which a thread returns to the scheduler: it waits, has ended, or an error ends the launch.
enum class Leave : int { none = 0, wait = 1, finished = 2, aborted = 3 };

class Scheduler {
 public:
  static constexpr std::size_t stack_size = 128 * 1024;
  std::vector<Fiber> fibers;
  unsigned current = 0;
  bool inside = false;  // `current` runs

  ~Scheduler() {
    for (Fiber& f : fibers)
      if (f.stack) munmap(f.stack, stack_size);
  }

  // Creates threads 0 to count - 1, each of which will run `body`. Returns false if there is no memory for their
  // stacks.
  bool start(unsigned count, void (*body)()) {
    if (fibers.size() < count) fibers.resize(count);
    count_ = count;
    for (unsigned t = 0; t < count; ++t) {
      Fiber& f = fibers[t];
      if (!f.stack) {
        void* p = mmap(nullptr, stack_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) return false;
        f.stack = static_cast<unsigned char*>(p);
        mprotect(p, 4096, PROT_NONE);  // an overflow is a fault, not another thread's data
      }
      getcontext(&f.context);
      f.context.uc_stack.ss_sp = f.stack;
      f.context.uc_stack.ss_size = stack_size;
      f.context.uc_link = nullptr;
      makecontext(&f.context, body, 0);
      f.started = false;
      f.state = State::ready;
    }
    return true;
  }

  unsigned count() const { return count_; }
  Fiber& self() { return fibers[current]; }
  bool on_stack(std::uintptr_t address) {
    return address - reinterpret_cast<std::uintptr_t>(self().stack) < stack_size;
  }

  // Runs thread `t` until it waits, ends or aborts the launch.
  Leave run(unsigned t) {
    current = t;
    const int left = _setjmp(home_);
    inside = left == 0;
    if (left) return static_cast<Leave>(left);
    Fiber& f = fibers[t];
    if (f.started) _longjmp(f.resume, 1);
    f.started = true;
    setcontext(&f.context);
    return Leave::aborted;  // not reached
  }

  // Suspends the running thread until its state is `ready` again.
  void wait() {
    if (!_setjmp(self().resume)) _longjmp(home_, static_cast<int>(Leave::wait));
  }
  [[noreturn]] void leave(Leave why) { _longjmp(home_, static_cast<int>(why)); }

  // Returns the order of the threads in the next round. Seed 0: ascending; 1: descending; otherwise a new random order.
  const std::vector<unsigned>& order(std::uint64_t& seed) {
    order_.resize(count_);
    std::iota(order_.begin(), order_.end(), 0u);
    if (seed == 1) std::reverse(order_.begin(), order_.end());
    if (seed > 1)
      for (unsigned i = count_; i > 1; --i) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        seed |= 2;
        std::swap(order_[i - 1], order_[(seed >> 33) % i]);
      }
    return order_;
  }

  // Describes all threads for a report, such as "threads 0-31 in __syncthreads (line 12)".
  std::string who_waits() const {
    std::string text;
    for (unsigned t = 0; t < count_;) {
      unsigned last = t;
      while (last + 1 < count_ && same(fibers[t], fibers[last + 1])) ++last;
      text += text.empty() ? "" : "; ";
      text += last == t ? "thread " + std::to_string(t) : "threads " + std::to_string(t) + "-" + std::to_string(last);
      text += describe(fibers[t]);
      t = last + 1;
    }
    return text;
  }

 private:
  unsigned count_ = 0;
  jmp_buf home_;
  std::vector<unsigned> order_;

  static bool same(const Fiber& a, const Fiber& b) {
    return a.state == b.state && (a.state == State::done || (a.line == b.line && a.mask == b.mask));
  }
  static std::string describe(const Fiber& f) {
    if (f.state == State::done) return " ended";
    std::string text = std::string(" in ") + f.name;
    if (f.state == State::mbarrier)
      return text + " at byte " + std::to_string(f.mask) + " for parity " + std::to_string(f.barrier_id);
    if (f.state == State::registers) return text + " for " + std::to_string(f.mask) + " registers a thread";
    if (f.state == State::products || f.state == State::cluster) return text;
    text += " (line " + std::to_string(f.line) + ")";
    if (f.state == State::warp) {
      char mask[32];
      std::snprintf(mask, sizeof mask, " with mask 0x%08x", f.mask);
      text += mask;
    }
    return text;
  }
};

}  // namespace emu
