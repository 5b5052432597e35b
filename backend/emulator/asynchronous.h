// What runs beside the threads of a block: boxes on their way, products of warpgroups, and who knows of their end.
//
// Every such operation belongs to an *agent* with a clock of its own: the loads that signal one mbarrier, the products
// of one warpgroup, the stores of one thread. Threads learn of agents where they wait, and pass on what they know where
// they synchronise. Stores of threads reach the agents only through a fence of the storing thread, so what was fenced
// is known and passed on separately.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "memory.h"

namespace emu {

// Up to which clock the work of every agent, and the stores of every thread that it has fenced, are known.
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

// The work of one agent, numbered from 1 in the order of its start.
struct Agent {
  u32 started = 0, ended = 0;
  std::vector<bool> done{true};

  u32 start() {
    done.push_back(false);
    return ++started;
  }
  // `ended` is the last number up to which everything is done.
  void finish(u32 number) {
    done[number] = true;
    while (ended < started && done[ended + 1]) ++ended;
  }
};

struct Use {
  u32 agent, clock;
  u64 pc;
};

// Sixteen bytes of shared memory, as agents use it.
struct Granule {
  u32 serial = 0;
  bool written = false;
  Use write{};
  std::vector<Use> reads;
};

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
  // An agent's work that a thread, or what it starts now, meets without knowing that it has ended; null if there is none.
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

// A barrier in shared memory: `arrivals` a phase, and bytes that are still to come.
struct Mbarrier {
  u32 arrivals = 0, missing = 0, phase = 0, maker = 0;
  long long bytes = 0;
  bool fenced = false;
  // What those who arrived in this phase know, and what those knew who completed the last.
  Knowledge gathered, complete;
  std::vector<u32> clocks, complete_clocks;
  u32 epoch = 0, complete_epoch = 0;

  bool passed(u32 parity) const { return (phase & 1) != parity; }
};

// What the host says about a tensor map; it comes in the kernel's parameter.
struct BoxMap {  // as long as a CUtensorMap
  u64 base, rank, swizzle, item;
  u64 extents[5], box[5], unused[2];

  u64 bytes() const {
    u64 n = item;
    for (u64 d = 0; d < rank; ++d) n *= box[d];
    return n;
  }
  u64 pitch() const { return box[rank - 1] * item; }
};

// The place of a byte of a box or an operand that starts at `start`: pieces of 16 bytes change places by exclusive or.
inline u32 swizzled(u32 address, u32 swizzle) {
  const u32 mask = swizzle == 128 ? 7 : swizzle == 64 ? 3 : swizzle == 32 ? 1 : 0;
  return address ^ ((address >> 7 & mask) << 4);
}

// A row of a box: where it lies in global memory (null outside of the buffer), and how many bytes of it are inside.
struct BoxRow {
  u64 address;
  u32 first, inside;
  bool exists;
};

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
