// Memory of the emulated device and the race detector. A *cell* records the last accesses to one byte of shared memory
// or to one element of a buffer.
//
// The detector orders accesses by CUDA's rules, not by the order in which they ran. A barrier of the whole block starts
// a new *epoch*: everything before is ordered before everything after. Narrower synchronisation joins the vector clocks
// of its threads within the epoch. Blocks of one launch are never ordered, launches always are.
#pragma once
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace emu {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

// Time and thread of an access. `serial` is the number of the block, counted over all launches from 1; 0 means no
// access. `pc` is the address of the instruction.
struct Stamp {
  u32 serial = 0, epoch = 0, clock = 0;
  std::uint16_t thread = 0;
  bool atomic = false;
  std::uintptr_t pc = 0;
};

// Readers of a cell in addition to the last one: none, other threads of the same block, or threads of other blocks.
enum class Others : unsigned char { none, threads, blocks };

// The last write and the last read of a byte or an element.
struct Cell {
  Stamp write, read;
  Others others = Others::none;
  bool in_flight = false;  // an asynchronous copy may still write it (shared memory only)
  u32 more = 0;  // 1 + index of the table of further readers (shared memory only)
};

// Array of cells. The system maps it as zero pages, so only cells that are used take memory.
class Cells {
 public:
  Cells() = default;
  explicit Cells(std::size_t count) : bytes_((count + 1) * sizeof(Cell)) {
    void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    cells_ = p == MAP_FAILED ? nullptr : static_cast<Cell*>(p);
  }
  Cells(const Cells&) = delete;
  Cells& operator=(const Cells&) = delete;
  ~Cells() {
    if (cells_) munmap(cells_, bytes_);
  }
  bool valid() const { return cells_ != nullptr; }
  Cell& operator[](std::size_t i) { return cells_[i]; }

 private:
  std::size_t bytes_ = 0;
  Cell* cells_ = nullptr;
};

// A buffer in global memory. Guards of 8 GiB, which cannot be accessed, separate buffers, so that no 32-bit index
// reaches from one into another. It is aligned exactly as the host promises (`ALIGNMENT` in runtime.py).
class Buffer {
 public:
  static constexpr std::size_t guard = std::size_t(1) << 33, alignment = 16;

  Buffer(std::size_t size, unsigned item, bool initialised)
      : size(size), item(item), initialised(initialised), cells(size / item + 1) {
    const std::size_t page = 4096;
    inside_ = (alignment + size + page - 1) / page * page + page;
    reserved_ = 2 * guard + inside_;
    void* p = mmap(nullptr, reserved_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return;
    start_ = reinterpret_cast<std::uintptr_t>(p);
    if (mprotect(reinterpret_cast<void*>(start_ + guard), inside_, PROT_READ | PROT_WRITE)) return;
    base = start_ + guard + alignment;
    std::memset(reinterpret_cast<void*>(base), 0xff, size);
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() {
    if (start_) munmap(reinterpret_cast<void*>(start_), reserved_);
  }
  bool valid() const { return base != 0 && cells.valid(); }
  bool near(std::uintptr_t address) const { return address - start_ < reserved_; }

  std::uintptr_t base = 0;
  std::size_t size;
  unsigned item;
  bool initialised;
  Cells cells;

 private:
  std::uintptr_t start_ = 0;
  std::size_t inside_ = 0, reserved_ = 0;
};

// Vector clocks of the threads of a block: for each thread, the clocks of the other threads up to which it has
// synchronised with them in the present epoch.
class Clocks {
 public:
  void start_block(u32 threads) {
    threads_ = threads;
    clock_.assign(threads, 1);
    seen_epoch_.assign(threads, 0);
  }
  u32 threads() const { return threads_; }
  u32 clock(u32 thread) const { return clock_[thread]; }
  u32 seen(u32 thread, u32 other, u32 epoch) const {
    return seen_epoch_[thread] == epoch ? seen_[std::size_t(thread) * threads_ + other] : 0;
  }
  // Release: raises the clocks in `known` to those of the thread, then increments the thread's clock.
  void give(u32 thread, u32 epoch, std::vector<u32>& known, u32& known_epoch) {
    if (known_epoch != epoch || known.size() != threads_) known.assign(threads_, 0);
    known_epoch = epoch;
    for (u32 o = 0; seen_epoch_[thread] == epoch && o < threads_; ++o)
      known[o] = std::max(known[o], seen_[std::size_t(thread) * threads_ + o]);
    known[thread] = std::max(known[thread], clock_[thread]);
    step(thread);
  }
  // Acquire: raises the thread's clocks to `known`. Nothing is needed if `known` is of an earlier epoch.
  void take(u32 thread, u32 epoch, const std::vector<u32>& known, u32 known_epoch) {
    if (known_epoch != epoch || known.size() != threads_) return;
    if (seen_.size() < std::size_t(threads_) * threads_) seen_.resize(std::size_t(threads_) * threads_);
    u32* row = &seen_[std::size_t(thread) * threads_];
    if (seen_epoch_[thread] != epoch) std::fill(row, row + threads_, 0u);
    seen_epoch_[thread] = epoch;
    for (u32 o = 0; o < threads_; ++o) row[o] = std::max(row[o], known[o]);
  }
  void step(u32 thread) { ++clock_[thread]; }
  // Synchronises `threads` with one another: all get the maximum of their clocks, then each increments its own.
  void join(const std::vector<u32>& threads, u32 epoch) {
    if (seen_.size() < std::size_t(threads_) * threads_) seen_.resize(std::size_t(threads_) * threads_);
    std::vector<u32> all(threads_, 0);
    for (u32 t : threads) {
      if (seen_epoch_[t] == epoch)
        for (u32 o = 0; o < threads_; ++o) all[o] = std::max(all[o], seen_[std::size_t(t) * threads_ + o]);
      all[t] = std::max(all[t], clock_[t]);
    }
    for (u32 t : threads) {
      std::memcpy(&seen_[std::size_t(t) * threads_], all.data(), threads_ * sizeof(u32));
      seen_epoch_[t] = epoch;
      ++clock_[t];
    }
  }

 private:
  u32 threads_ = 0;
  std::vector<u32> clock_, seen_, seen_epoch_;
};

// Race detector. `read` and `write` record an access to a cell and return the earlier access that it races with, or
// null. `shared`: the cell is in shared memory, which belongs to this block; cells of global memory belong to all
// blocks.
class Detector {
 public:
  Clocks clocks;
  u32 serial = 0, epoch = 1, first_of_launch = 1;
  bool raced_with_write = false;  // true if the last returned access is a write

  void start_block(u32 threads) {
    ++serial;
    epoch = 1;
    clocks.start_block(threads);
    readers_.clear();
  }
  Stamp now(u32 thread, std::uintptr_t pc, bool atomic) const {
    return {serial, epoch, clocks.clock(thread), std::uint16_t(thread), atomic, pc};
  }
  const Stamp* read(Cell& cell, const Stamp& me, bool shared) {
    const Stamp* race = ordered(cell.write, me, shared) ? nullptr : &cell.write;
    raced_with_write = true;
    if (!fresh(cell.read, shared)) {
      cell.others = Others::none;
      cell.more = 0;
    } else if (!shared) {
      cell.others = with_reader(cell, me);
    } else if (cell.read.epoch == me.epoch && cell.read.thread != me.thread) {
      Readers& readers = open(cell, me.epoch);
      readers.clock[cell.read.thread] = cell.read.clock;
      readers.clock[me.thread] = me.clock;
    }
    cell.read = me;
    return race;
  }
  // Returns true if a read of a shared memory cell since the last write is not ordered before `me`.
  bool unordered_read(Cell& cell, const Stamp& me) {
    if (!fresh(cell.read, true)) return false;
    return !ordered(cell.read, me, true) || (cell.more && unordered_reader(cell, me));
  }
  const Stamp* write(Cell& cell, const Stamp& me, bool shared) {
    const bool was_read = fresh(cell.read, shared);
    bool race = true;
    raced_with_write = !ordered(cell.write, me, shared);
    if (raced_with_write) last_ = cell.write;
    else if (!ordered(cell.read, me, shared) || (was_read && several(cell, me))) last_ = cell.read;
    else race = was_read && shared && cell.more && unordered_reader(cell, me);
    cell.write = me;
    return race ? &last_ : nullptr;
  }

 private:
  // Clock at which each thread of the block read a cell in the epoch; 0 if it did not.
  struct Readers {
    u32 epoch = 0;
    std::vector<u32> clock;
  };
  std::vector<Readers> readers_;
  Stamp last_;

  bool fresh(const Stamp& s, bool shared) const { return s.serial >= (shared ? serial : first_of_launch); }
  bool ordered(const Stamp& s, const Stamp& me, bool shared) const {
    if (!fresh(s, shared) || (s.atomic && me.atomic)) return true;
    if (s.serial != me.serial) return false;
    return s.thread == me.thread || s.epoch < me.epoch || clocks.seen(me.thread, s.thread, me.epoch) >= s.clock;
  }
  static bool several(const Cell& cell, const Stamp& me) {
    return cell.others == Others::blocks || (cell.others == Others::threads && cell.read.epoch == me.epoch);
  }
  // Cells of global memory record only the class of their readers: a weight has too many readers for a list.
  static Others with_reader(const Cell& cell, const Stamp& me) {
    if (cell.others == Others::blocks || cell.read.serial != me.serial) return Others::blocks;
    if (cell.read.epoch != me.epoch) return Others::none;
    return cell.others == Others::threads || cell.read.thread != me.thread ? Others::threads : Others::none;
  }
  Readers& open(Cell& cell, u32 now) {
    if (!cell.more) {
      readers_.emplace_back();
      cell.more = u32(readers_.size());
    }
    Readers& readers = readers_[cell.more - 1];
    if (readers.epoch != now) {
      readers.epoch = now;
      readers.clock.assign(clocks.threads(), 0);
    }
    return readers;
  }
  bool unordered_reader(const Cell& cell, const Stamp& me) {
    const Readers& readers = readers_[cell.more - 1];
    if (readers.epoch != me.epoch) return false;
    for (u32 t = 0; t < readers.clock.size(); ++t)
      if (readers.clock[t] && t != me.thread && clocks.seen(me.thread, t, me.epoch) < readers.clock[t]) {
        last_ = cell.read;
        last_.thread = std::uint16_t(t);
        return true;
      }
    return false;
  }
};

}  // namespace emu
