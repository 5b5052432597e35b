// Race detection for operations that run asynchronously to the threads of a block: TMA copies and wgmma.
//
// Each operation belongs to an *agent*, a unit that executes its operations in order and has a clock of its own: the
// TMA loads that signal one mbarrier, the wgmmas of one warpgroup, or the TMA stores of one thread. A thread learns
// that an operation is complete when it waits for it, and threads exchange this knowledge when they synchronise. An
// agent sees the stores of a thread only after a fence of that thread (the async proxy fence), so fenced stores are
// tracked separately.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "memory.h"

namespace emu {

// What one thread knows. `agents[i]`: operations of agent i up to this clock are complete. `fenced[t]`: stores of
// thread t up to this clock are visible to agents.
struct Knowledge {
  std::vector<u32> agents, fenced;

  void learn(const Knowledge& other) {
    raise(agents, other.agents);
    raise(fenced, other.fenced);
  }
  static void raise(std::vector<u32>& mine, const std::vector<u32>& others) {
    if (mine.size() < others.size()) mine.resize(others.size());
    for (std::size_t i = 0; i < others.size(); ++i) mine[i] = std::max(mine[i], others[i]);
  }
  static void set(std::vector<u32>& clocks, u32 i, u32 clock) {
    if (clocks.size() <= i) clocks.resize(i + 1);
    clocks[i] = std::max(clocks[i], clock);
  }
  static u32 get(const std::vector<u32>& clocks, u32 i) { return i < clocks.size() ? clocks[i] : 0; }
};

// The operations of one agent, numbered from 1 in the order in which they start.
struct Agent {
  u32 started = 0, ended = 0;
  std::vector<bool> done{true};

  u32 start() {
    done.push_back(false);
    return ++started;
  }
  // Marks an operation as complete. `ended`: all operations up to this number are complete.
  void finish(u32 number) {
    done[number] = true;
    while (ended < started && done[ended + 1]) ++ended;
  }
};

// Access by operation number `clock` of an agent, which the instruction at `pc` started.
struct Use {
  u32 agent, clock;
  u64 pc;
};

// State of 16 bytes of shared memory, the unit in which agents access it: the last write, and the reads since.
struct Granule {
  u32 serial = 0;
  bool written = false;
  Use write{};
  std::vector<Use> reads;
};

// All agents of the running block, what its threads know of them, and their accesses to shared memory.
class Agents {
 public:
  static constexpr std::size_t granule = 16;
  enum Kind { loads, products, stores };

  std::vector<Knowledge> threads;
  std::vector<Agent> agents;
  bool active = false;

  void start_block(u32 count, u32 serial) {
    if (active || threads.size() != count) threads.assign(count, Knowledge());
    agents.clear();
    numbers_.clear();
    serial_ = serial;
    active = false;
  }
  u32 agent(Kind kind, u32 key) {
    active = true;
    auto found = numbers_.emplace(std::make_pair(kind, key), u32(agents.size()));
    if (found.second) agents.emplace_back();
    return found.first->second;
  }
  void join(const std::vector<u32>& together) {
    if (!active) return;
    Knowledge all;
    for (u32 t : together) all.learn(threads[t]);
    for (u32 t : together) threads[t] = all;
  }
  Granule& at(std::size_t byte) {
    if (granules_.empty()) granules_.resize(std::size_t(EMU_MOST_SHARED) * EMU_MOST_CLUSTER / granule);
    Granule& g = granules_[byte / granule];
    if (g.serial != serial_) g = Granule{serial_, false, {}, {}};
    return g;
  }
  bool knows(u32 thread, const Use& use) const { return Knowledge::get(threads[thread].agents, use.agent) >= use.clock; }
  // Returns an earlier access of an agent that conflicts with an access by `thread` (or by an operation that it starts
  // now) and that the thread does not know to be complete. Returns null if there is none.
  const Use* unknown(Granule& g, u32 thread, bool write) const {
    if (g.written && !knows(thread, g.write)) return &g.write;
    if (!write) return nullptr;
    for (const Use& use : g.reads)
      if (!knows(thread, use)) return &use;
    return nullptr;
  }
  static void record(Granule& g, const Use& use, bool write) {
    if (write) {
      g.written = true;
      g.write = use;
      g.reads.clear();
      return;
    }
    for (Use& old : g.reads)
      if (old.agent == use.agent) {
        old = use;
        return;
      }
    g.reads.push_back(use);
  }

 private:
  std::map<std::pair<Kind, u32>, u32> numbers_;
  std::vector<Granule> granules_;
  u32 serial_ = 0;
};

// An mbarrier in shared memory. A phase completes after `arrivals` arrivals (`missing` are outstanding) and after all
// announced bytes have arrived (`bytes` are outstanding). `maker`: the thread that initialised it.
struct Mbarrier {
  u32 arrivals = 0, missing = 0, phase = 0, maker = 0;
  long long bytes = 0;
  bool fenced = false;
  // Knowledge of the threads that have arrived in the present phase, and of those that arrived in the last complete
  // phase.
  Knowledge gathered, complete;
  std::vector<u32> clocks, complete_clocks;
  u32 epoch = 0, complete_epoch = 0;

  bool passed(u32 parity) const { return (phase & 1) != parity; }
};

// Tensor map of the emulator: describes a tensor in global memory and the box that a TMA copy moves. The kernel gets it
// in place of a CUtensorMap, and it has the same size. `item`: bytes of an element; dimensions are ordered slowest
// first.
struct BoxMap {
  u64 base, rank, swizzle, item;
  u64 extents[5], box[5], unused[2];

  u64 bytes() const {
    u64 n = item;
    for (u64 d = 0; d < rank; ++d) n *= box[d];
    return n;
  }
  u64 pitch() const { return box[rank - 1] * item; }
};

// Applies the hardware's swizzle of 32, 64 or 128 bytes to an address in shared memory: XORs the index of a 16-byte
// chunk with bits of the row index.
inline u32 swizzled(u32 address, u32 swizzle) {
  const u32 mask = swizzle == 128 ? 7 : swizzle == 64 ? 3 : swizzle == 32 ? 1 : 0;
  return address ^ ((address >> 7 & mask) << 4);
}

// One row of a box in global memory. `inside` bytes of it are within the tensor, from byte `first` of the row on; they
// start at `address`. `exists` is false if none are.
struct BoxRow {
  u64 address;
  u32 first, inside;
  bool exists;
};

// Returns the rows of the box whose first element has the coordinates `at`.
inline std::vector<BoxRow> rows_of(const BoxMap& map, const std::vector<int>& at) {
  const u64 rank = map.rank;
  u64 count = 1;
  for (u64 d = 0; d + 1 < rank; ++d) count *= map.box[d];
  std::vector<BoxRow> rows;
  for (u64 row = 0; row < count; ++row) {
    u64 rest = row;
    long long place = 0, pitch = (long long)(map.item * map.extents[rank - 1]);
    bool exists = true;
    for (u64 d = rank - 1; d-- > 0;) {
      const long long c = at[d] + (long long)(rest % map.box[d]);
      rest /= map.box[d];
      exists &= c >= 0 && c < (long long)map.extents[d];
      place += c * pitch;
      pitch *= (long long)map.extents[d];
    }
    const long long begin = at[rank - 1], end = begin + (long long)map.box[rank - 1];
    const long long low = std::max(begin, 0ll), high = std::min(end, (long long)map.extents[rank - 1]);
    exists &= low < high;
    const u32 first = exists ? u32((low - begin) * (long long)map.item) : 0;
    const u32 inside = exists ? u32((high - low) * (long long)map.item) : 0;
    rows.push_back({map.base + u64(place + low * (long long)map.item), first, inside, exists});
  }
  return rows;
}

}  // namespace emu
