// Asynchronous copies into shared memory, thread by thread and group by group.
//
// A copy brings its bytes at any time between its start and the wait of its thread: at once, or as late as it can, by
// the seed of the schedule. Until the wait nobody may touch where it goes; the wait counts as the thread's own write.
#pragma once
#include <cstring>
#include <utility>
#include <vector>

#include "memory.h"

namespace emu {

class Copies {
 public:
  // Forgets all copies of the block before; what they never brought stays away.
  void start_block(u32 threads, u64 seed, Cells& cells) {
    cells_ = &cells;
    for (Thread& thread : threads_) {
      thread.groups.push_back(std::move(thread.open));
      for (const Group& group : thread.groups)
        for (const Copy& copy : group) set_flying(copy, false);
    }
    threads_.assign(threads, Thread());
    seed_ = seed;
  }
  // `source` is null for zeros; `cell` is the first of the cells of `target`.
  void start(u32 thread, void* target, std::size_t cell, const void* source, unsigned size, u64 pc) {
    Copy copy{static_cast<unsigned char*>(target), cell, {}, size, pc};
    if (source) std::memcpy(copy.bytes, source, size);
    std::memset(target, 0xff, size);
    if (arrives_early()) std::memcpy(target, copy.bytes, size);
    set_flying(copy, true);
    threads_[thread].open.push_back(copy);
  }
  void commit(u32 thread) {
    Thread& mine = threads_[thread];
    mine.groups.push_back(std::move(mine.open));
    mine.open.clear();
  }
  void wait(u32 thread, std::size_t pending, Detector& detector) {
    auto& groups = threads_[thread].groups;
    const std::size_t arriving = groups.size() > pending ? groups.size() - pending : 0;
    for (std::size_t g = 0; g < arriving; ++g)
      for (const Copy& copy : groups[g]) arrive(copy, thread, detector);
    groups.erase(groups.begin(), groups.begin() + std::ptrdiff_t(arriving));
  }

 private:
  struct Copy {
    unsigned char* target;
    std::size_t cell;
    unsigned char bytes[16];
    unsigned size;
    u64 pc;
  };
  using Group = std::vector<Copy>;
  struct Thread {
    Group open;
    std::vector<Group> groups;
  };
  std::vector<Thread> threads_;
  Cells* cells_ = nullptr;
  u64 seed_ = 0;

  Cell& cell(const Copy& copy, unsigned i) { return (*cells_)[copy.cell + i]; }
  void set_flying(const Copy& copy, bool flying) {
    for (unsigned i = 0; i < copy.size; ++i) cell(copy, i).flying = flying;
  }
  void arrive(const Copy& copy, u32 thread, Detector& detector) {
    std::memcpy(copy.target, copy.bytes, copy.size);
    set_flying(copy, false);
    const Stamp me = detector.now(thread, copy.pc, false);
    for (unsigned i = 0; i < copy.size; ++i) detector.write(cell(copy, i), me, true);
  }
  // Seed 0: all as late as they can; 1: all at once; else each as it happens.
  bool arrives_early() {
    if (seed_ < 2) return seed_ == 1;
    seed_ = (seed_ * 6364136223846793005ull + 1442695040888963407ull) | 2;
    return seed_ >> 40 & 1;
  }
};

}  // namespace emu
