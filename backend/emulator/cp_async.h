// cp.async: asynchronous copies into shared memory, which each thread commits and waits for in groups.
//
// A copy may write its bytes at any time between its start and the wait of its thread. The seed of the schedule decides
// whether it writes at once or at the wait. Before the wait no thread may access the target; the wait counts as a
// write by the waiting thread.
#pragma once
#include <cstring>
#include <utility>
#include <vector>

#include "memory.h"

namespace emu {

class Copies {
 public:
  // Discards the copies of the previous block. Copies that nobody waited for never write their bytes.
  void start_block(u32 threads, u64 seed, Cells& cells) {
    cells_ = &cells;
    for (Thread& thread : threads_) {
      thread.groups.push_back(std::move(thread.open));
      for (const Group& group : thread.groups)
        for (const Copy& copy : group) set_in_flight(copy, false);
    }
    threads_.assign(threads, Thread());
    seed_ = seed;
  }
  // Starts a copy. `source` is null for zeros. `cell` is the index of the detector cell of the first target byte.
  void start(u32 thread, void* target, std::size_t cell, const void* source, unsigned size, u64 pc) {
    Copy copy{static_cast<unsigned char*>(target), cell, {}, size, pc};
    if (source) std::memcpy(copy.bytes, source, size);
    std::memset(target, 0xff, size);
    if (arrives_early()) std::memcpy(target, copy.bytes, size);
    set_in_flight(copy, true);
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
  void set_in_flight(const Copy& copy, bool in_flight) {
    for (unsigned i = 0; i < copy.size; ++i) cell(copy, i).in_flight = in_flight;
  }
  void arrive(const Copy& copy, u32 thread, Detector& detector) {
    std::memcpy(copy.target, copy.bytes, copy.size);
    set_in_flight(copy, false);
    const Stamp me = detector.now(thread, copy.pc, false);
    for (unsigned i = 0; i < copy.size; ++i) detector.write(cell(copy, i), me, true);
  }
  // Returns true if the next copy writes its bytes at once. Seed 0: never; 1: always; otherwise random.
  bool arrives_early() {
    if (seed_ < 2) return seed_ == 1;
    seed_ = (seed_ * 6364136223846793005ull + 1442695040888963407ull) | 2;
    return seed_ >> 40 & 1;
  }
};

}  // namespace emu
