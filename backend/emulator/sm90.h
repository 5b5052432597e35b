// Emulation of sm_90a: mbarriers, TMA copies of boxes (a box is a tile of a tensor), and wgmma ("product"). Part of
// runtime.cpp, whose functions it calls.
//
// The seed of the schedule decides whether a box arrives at once, as late as possible or at a random time. A product is
// computed when the warpgroup waits for it; until then its accumulators hold NaN. Operations that are outstanding
// when the block ends are reported.
#pragma once

Agents agents;
std::map<u32, Mbarrier> mbarriers;

// A TMA copy of a box, in either direction.
struct BoxCopy {
  BoxMap map;
  std::vector<int> at;
  u32 address, barrier;  // offsets in the shared memory of a block, the same in all target blocks
  u32 agent, clock;
  bool done;
  std::vector<u32> bases;  // start of the shared memory of each target block, or of the source block
};
std::vector<BoxCopy> loads_on_their_way;
// TMA stores of a thread: those not yet committed, and the committed groups that it has not waited for.
struct BulkStores {
  std::vector<BoxCopy> open;
  std::vector<std::vector<BoxCopy>> groups;
};
std::vector<BulkStores> bulk_stores;
u64 hopper_seed = 0;

bool happens_early() {
  if (hopper_seed < 2) return hopper_seed == 1;
  hopper_seed = (hopper_seed * 6364136223846793005ull + 1442695040888963407ull) | 2;
  return hopper_seed >> 40 & 1;
}

// Returns the offset of `pointer` in the shared memory of the cluster. Reports an error and aborts the launch if its
// `size` bytes are not all inside the allocation of one block.
u32 shared_place(const void* pointer, u64 size, const char* what, u64 pc) {
  const u64 place = address_of(pointer) - address_of(shared_area);
  const u64 within = place % EMU_MOST_SHARED;
  if (place < base_of(launch.cluster) && within + size <= launch.shared_bytes) return u32(place);
  report("out-of-bounds", std::string(what) + " touches what is no shared memory of the block", pc);
  abort_launch();
}

// ---- conflicts between threads and agents ----

void report_agent(const char* what, bool write, std::size_t place, u64 pc) {
  const std::size_t byte = place % EMU_MOST_SHARED;
  report("race", std::string(what) + (write ? " writes byte " : " reads byte ") + std::to_string(byte) +
                     " of shared memory, which something asynchronous that nobody has waited for still uses", pc);
}

// Checks an access of the running thread against those of agents (see asynchronous.h). Returns true if an agent has
// written all of the bytes.
bool meet_agents(std::size_t byte, unsigned size, bool write, u64 pc) {
  bool written = true;
  for (std::size_t b = byte / Agents::granule * Agents::granule; b < byte + size; b += Agents::granule) {
    Granule& g = agents.at(b);
    if (agents.unknown(g, scheduler.current, write)) report_agent("a thread", write, byte, pc);
    written &= g.written;
  }
  return written;
}

// Checks and records that an asynchronous operation, which thread `t` starts, accesses 16 bytes of shared memory.
void use_granule(u32 byte, unsigned t, const Use& use, bool write, const char* what) {
  Granule& g = agents.at(byte);
  if (agents.unknown(g, t, write)) report_agent(what, write, byte, use.pc);
  bool missing = false;
  for (u32 i = 0; i < Agents::granule; ++i) {
    Cell& c = (*shared_cells)[byte + i];
    const bool stored = c.write.serial == detector.serial;
    missing |= !stored && !g.written;
    if (stored && Knowledge::get(agents.threads[t].fenced, c.write.thread) < c.write.clock)
      report("fence", std::string(what) + " meets byte " + std::to_string((byte + i) % EMU_MOST_SHARED) +
                          " of shared memory, which a thread stored without a fence for it since", use.pc, &c.write);
    if (write && detector.unordered_read(c, detector.now(t, use.pc, false)))
      report("race", std::string(what) + " writes byte " + std::to_string((byte + i) % EMU_MOST_SHARED) +
                         " of shared memory, which a thread may still read", use.pc);
  }
  if (missing && !write)
    report("uninitialised", std::string(what) + " reads byte " + std::to_string(byte % EMU_MOST_SHARED) +
                                " of shared memory, which nobody wrote", use.pc);
  Agents::record(g, use, write);
}

// ---- mbarriers ----

Mbarrier& barrier_at(void* pointer, u64 pc) {
  const u32 place = shared_place(pointer, 8, "an mbarrier", pc);
  auto found = mbarriers.find(place);
  if (found == mbarriers.end()) {
    report("uninitialised", "the mbarrier at byte " + std::to_string(place % EMU_MOST_SHARED) + " was not set up", pc);
    abort_launch();
  }
  shared_access(place, 8, true, true, pc);
  return found->second;
}

void complete_phase(Mbarrier& b) {
  if (b.missing || b.bytes) return;
  ++b.phase;
  b.missing = b.arrivals;
  b.complete = std::move(b.gathered);
  b.complete_clocks = std::move(b.clocks);
  b.complete_epoch = b.epoch;
  b.gathered = Knowledge();
  b.clocks.clear();
}

bool open_mbarriers() {
  bool opened = false;
  for (unsigned t = 0; t < scheduler.count(); ++t) {
    Fiber& f = scheduler.fibers[t];
    if (f.state != State::mbarrier || !mbarriers[f.mask].passed(f.barrier_id)) continue;
    f.state = State::ready;
    opened = true;
  }
  return opened;
}

// ---- boxes ----

template <class Piece>
void each_piece(const BoxCopy& copy, Piece piece) {
  const u32 pitch = u32(copy.map.pitch());
  u32 place = copy.address;
  for (const BoxRow& row : rows_of(copy.map, copy.at)) {
    for (u32 byte = 0; byte < pitch; byte += 16) piece(row, byte, swizzled(place + byte, u32(copy.map.swizzle)));
    place += pitch;
  }
}

void deliver(std::size_t number) {
  BoxCopy copy = loads_on_their_way[number];
  loads_on_their_way.erase(loads_on_their_way.begin() + std::ptrdiff_t(number));
  each_piece(copy, [&](const BoxRow& row, u32 byte, u32 place) {
    for (u32 i = byte; i < byte + 16; ++i) {
      const bool inside = row.exists && i >= row.first && i < row.first + row.inside;
      const u64 from = row.address + i - row.first;
      for (u32 base : copy.bases)
        shared_area[base + place + i - byte] = inside ? *reinterpret_cast<const unsigned char*>(from) : 0;
    }
  });
  Agent& agent = agents.agents[copy.agent];
  agent.finish(copy.clock);
  for (u32 base : copy.bases) {
    Mbarrier& b = mbarriers[base + copy.barrier];
    Knowledge::set(b.gathered.agents, copy.agent, agent.ended);
    b.bytes -= (long long)copy.map.bytes();
    complete_phase(b);
  }
}

// Completes one outstanding load between two rounds of the threads: at random, or if `must`, because no thread can run.
// Returns true if a load arrived.
bool deliver_something(bool must) {
  if (loads_on_their_way.empty() || (!must && (hopper_seed < 2 || !happens_early()))) return false;
  deliver(hopper_seed < 2 ? 0 : (hopper_seed >> 20) % loads_on_their_way.size());
  return true;
}

// Records the accesses of a box to global memory as accesses of the running thread.
void touch_global(const BoxCopy& copy, bool write, u64 pc) {
  for (const BoxRow& row : rows_of(copy.map, copy.at)) {
    if (!row.exists) continue;
    for (unsigned i = 0; i < launch.buffers.size(); ++i)
      if (launch.buffers[i].buffer->near(row.address)) global_access(i, row.address, row.inside, write, false, pc);
  }
}

BoxCopy new_box(const void* map, const void* shared, const int* at, int rank, const char* what, u64 pc) {
  BoxMap m;
  std::memcpy(&m, map, sizeof m);
  if (m.rank != u64(rank)) {
    report("protocol", std::string(what) + " with another number of coordinates than its map has", pc);
    abort_launch();
  }
  const u32 whole = shared_place(shared, m.bytes(), what, pc), place = whole % EMU_MOST_SHARED;
  const u32 alignment = m.swizzle ? 8 * u32(m.swizzle) : 128;
  if (address_of(shared) % alignment)
    report("misaligned", std::string(what) + " at byte " + std::to_string(place) + " of shared memory, whose address is " +
                             "no multiple of " + std::to_string(alignment), pc);
  return {m, std::vector<int>(at, at + rank), place, 0, 0, 0, false, {whole - place}};
}

void write_box(BoxCopy& copy) {
  if (copy.done) return;
  copy.done = true;
  each_piece(copy, [&](const BoxRow& row, u32 byte, u32 place) {
    for (u32 i = byte; i < byte + 16; ++i)
      if (row.exists && i >= row.first && i < row.first + row.inside)
        *reinterpret_cast<unsigned char*>(row.address + i - row.first) =
            shared_area[copy.bases[0] + place + i - byte];
  });
}

void finish_stores(unsigned t, std::size_t pending) {
  auto& groups = bulk_stores[t].groups;
  while (groups.size() > pending) {
    for (BoxCopy& copy : groups.front()) {
      write_box(copy);
      agents.agents[copy.agent].finish(copy.clock);
      Knowledge::set(agents.threads[t].agents, copy.agent, agents.agents[copy.agent].ended);
    }
    groups.erase(groups.begin());
  }
}

// ---- products ----

constexpr unsigned warpgroup_threads = 128;

// One wgmma, with the registers of all threads of the warpgroup.
struct Product {
  int columns, a_transposed, b_transposed, format;
  u64 a_at, b_at;
  u32 base;  // start of the block's shared memory
  bool accumulate, from_registers;
  u32 group, issued;
  float* d[warpgroup_threads];
  unsigned short a[warpgroup_threads][8];
  const void* registers[warpgroup_threads];  // registers of which `a` is a copy
  u64 pc;
};

// Values of accumulator registers that `pending` products still update; the registers themselves hold NaN until then.
struct Accumulators {
  std::vector<float> values;
  u32 pending = 0;
};

// wgmma state of a warpgroup; arrays have an entry per thread. `started`: products that the thread has started;
// `groups`: groups that it has committed; `fenced`: it has executed wgmma.fence since its last wait.
struct Warpgroup {
  std::vector<Product> products;  // those not yet computed
  u32 computed = 0;
  u32 started[warpgroup_threads] = {}, groups[warpgroup_threads] = {};
  bool fenced[warpgroup_threads] = {};
  std::map<float*, Accumulators> accumulators[warpgroup_threads];
};
std::vector<Warpgroup> warpgroups;

u32 bytes_of(int format) { return format == emu_tf32 ? 4 : 2; }
u32 depth_of(int format) { return 32 / bytes_of(format); }

float widened(const void* place, int format) {
  u32 u = 0;
  std::memcpy(&u, place, bytes_of(format));
  return emu_factor(u, format);
}

// Returns the offset of element (`line`, `k`) of an operand in shared memory. `line` is a row of A or a column of B,
// and k is the index along the contraction.
u32 operand_place(u64 descriptor, u32 line, u32 k, bool transposed, int format) {
  const u32 start = u32(descriptor & 0x3fff) << 4, leading = u32(descriptor >> 16 & 0x3fff) << 4;
  const u32 stride = u32(descriptor >> 32 & 0x3fff) << 4, code = u32(descriptor >> 62);
  const u32 width = code == 1 ? 128 : code == 2 ? 64 : 32;
  u32 place = start + line / 8 * stride + line % 8 * width + bytes_of(format) * k;
  if (transposed) place = start + line / (width / 2) * leading + k / 8 * stride + k % 8 * width + line % (width / 2) * 2;
  return swizzled(place, width) & (EMU_MOST_SHARED - 1);
}

float operand(u32 base, u64 descriptor, u32 line, u32 k, bool transposed, int format) {
  return widened(shared_area + base + operand_place(descriptor, line, k, transposed, format), format);
}

// Returns the offsets of all 16-byte granules of an operand's lines, without duplicates. It caches the last two
// results, because the warps of a warpgroup ask for the same B.
const std::vector<u32>& granules_of(u64 descriptor, u32 from, u32 to, bool transposed, int format) {
  struct Answer {
    std::tuple<u64, u32, u32, bool, int> key;
    std::vector<u32> places;
  };
  static Answer answers[2];
  const auto key = std::make_tuple(descriptor, from, to, transposed, format);
  for (Answer& answer : answers)
    if (answer.key == key && !answer.places.empty()) return answer.places;
  static unsigned next = 0;
  Answer& answer = answers[next++ % 2];
  answer.key = key;
  answer.places.clear();
  for (u32 line = from; line < to; ++line)
    for (u32 k = 0; k < depth_of(format); ++k)
      answer.places.push_back(operand_place(descriptor, line, k, transposed, format) / Agents::granule * Agents::granule);
  std::sort(answer.places.begin(), answer.places.end());
  answer.places.erase(std::unique(answer.places.begin(), answer.places.end()), answer.places.end());
  return answer.places;
}

// Checks and records the shared memory that one warp reads for a product: its 16 rows of A, and all of B.
void use_operands(const Product& p, unsigned t, const Use& use) {
  const auto side = [&](u64 descriptor, u32 from, u32 to, bool transposed) {
    const u32 code = u32(descriptor >> 62), width = code == 1 ? 128 : code == 2 ? 64 : 32;
    const u32 inside = u32((address_of(shared_area) + ((descriptor & 0x3fff) << 4)) % (8 * width));
    if (inside && (transposed || inside >= width || inside % 32))
      report("misaligned", "an operand starts " + std::to_string(inside) + " bytes behind a multiple of " +
                               std::to_string(8 * width), use.pc);
    for (u32 place : granules_of(descriptor, from, to, transposed, p.format)) {
      if (place + Agents::granule <= launch.shared_bytes) {
        use_granule(p.base + place, t, use, false, "a product");
        continue;
      }
      report("out-of-bounds", "a product reads what is no shared memory of the block", use.pc);
      abort_launch();
    }
  };
  const u32 first = t % block_threads() % warpgroup_threads / 32 * 16;
  if (!p.from_registers) side(p.a_at, first, first + 16, p.a_transposed != 0);
  side(p.b_at, 0, u32(p.columns), p.b_transposed != 0);
}

void compute(Warpgroup& w, Product& p) {
  const u32 depth = depth_of(p.format), word = 4 / bytes_of(p.format);
  std::vector<float> a(64 * depth), b(std::size_t(depth) * p.columns);
  for (u32 t = 0; p.from_registers && t < warpgroup_threads; ++t) {
    if (std::memcmp(p.a[t], p.registers[t], sizeof p.a[t]))
      report("race", "registers are written that a product in flight reads", p.pc);
    for (u32 e = 0; e < depth / 2; ++e) {
      const u32 part = e / word, row = t / 32 * 16 + t % 32 / 4 + 8 * (part & 1);
      const u32 k = word * (t % 4) + e % word + 4 * word * (part >> 1);
      a[row * depth + k] = widened(reinterpret_cast<const char*>(p.a[t]) + bytes_of(p.format) * e, p.format);
    }
  }
  for (u32 i = 0; !p.from_registers && i < a.size(); ++i)
    a[i] = operand(p.base, p.a_at, i / depth, i % depth, p.a_transposed, p.format);
  for (u32 i = 0; i < b.size(); ++i)
    b[i] = operand(p.base, p.b_at, i / depth, i % depth, p.b_transposed, p.format);
  for (u32 t = 0; t < warpgroup_threads; ++t) {
    Accumulators& mine = w.accumulators[t][p.d[t]];
    for (u32 r = 0; r < u32(p.columns) / 2; ++r) {
      const u32 row = t / 32 * 16 + t % 32 / 4 + 8 * (r >> 1 & 1), column = r / 4 * 8 + 2 * (t % 4) + (r & 1);
      float sum = p.accumulate ? mine.values[r] : 0.0f;
      mine.values[r] = add_products(sum, &a[row * depth], &b[column * depth], int(depth), hopper_extra);
    }
    if (--mine.pending) continue;
    std::memcpy(p.d[t], mine.values.data(), mine.values.size() * sizeof(float));
    w.accumulators[t].erase(p.d[t]);
  }
}

u32 block_warpgroups() { return (block_threads() + warpgroup_threads - 1) / warpgroup_threads; }

// Opens a wait for products if all threads of a warpgroup are in it, and computes the products that they wait for.
bool open_warpgroups() {
  bool opened = false;
  for (u32 g = 0; g < warpgroups.size(); ++g) {
    Warpgroup& w = warpgroups[g];
    const u32 within = g % block_warpgroups() * warpgroup_threads;
    const u32 first = g / block_warpgroups() * block_threads() + within;
    bool all = within + warpgroup_threads <= block_threads(), alike = true;
    for (u32 t = 0; all && t < warpgroup_threads; ++t) {
      const Fiber& f = scheduler.fibers[first + t];
      all = f.state == State::products;
      alike &= f.mask == scheduler.fibers[first].mask && w.started[t] == w.started[0] && w.groups[t] == w.groups[0];
    }
    if (!all) continue;
    if (!alike) {
      report("divergent", "the threads of a warpgroup have not started the same products: " + scheduler.who_waits(), 0);
      return false;
    }
    const u32 pending = scheduler.fibers[first].mask;
    while (!w.products.empty() && w.products[0].group + pending < w.groups[0]) {
      compute(w, w.products[0]);
      w.products.erase(w.products.begin());
      ++w.computed;
    }
    const u32 agent = agents.agent(Agents::products, g);
    for (u32 t = 0; t < warpgroup_threads; ++t) {
      Knowledge::set(agents.threads[first + t].agents, agent, w.computed);
      w.fenced[t] = false;
      scheduler.fibers[first + t].state = State::ready;
    }
    opened = true;
  }
  return opened;
}

u32 my_warpgroup_number() {
  return my_rank() * block_warpgroups() + scheduler.current % block_threads() / warpgroup_threads;
}
Warpgroup& my_warpgroup() { return warpgroups[my_warpgroup_number()]; }
u32 my_number() { return scheduler.current % block_threads() % warpgroup_threads; }

// ---- registers of warps (setmaxnreg) ----

std::vector<u32> warp_registers;        // per warp: registers of one thread
std::vector<long long> free_registers;  // per block: released registers that no warp has taken

// Executes setmaxnreg of warps whose threads all wait in it. A warp that takes registers stays waiting until enough are
// free.
bool open_registers() {
  bool opened = false;
  for (unsigned first = 0; first < scheduler.count(); first += 32) {
    const Fiber& f = scheduler.fibers[first];
    bool all = true;
    for (unsigned t = first; t < first + 32; ++t)
      all &= scheduler.fibers[t].state == State::registers && scheduler.fibers[t].mask == f.mask;
    if (!all) continue;
    u32& has = warp_registers[first / 32];
    const long long change = 32 * ((long long)f.mask - has);
    if (f.barrier_id ? change < 0 : change > 0)
      report("protocol", std::string(f.name) + "<" + std::to_string(f.mask) + "> by threads that have " + std::to_string(has), 0);
    if (change > free_registers[rank_of(first)]) continue;
    free_registers[rank_of(first)] -= change;
    has = f.mask;
    for (unsigned t = first; t < first + 32; ++t) scheduler.fibers[t].state = State::ready;
    opened = true;
  }
  return opened;
}

// ---- blocks ----

void start_hopper(unsigned threads, u64 seed) {
  agents.start_block(threads, detector.serial);
  mbarriers.clear();
  loads_on_their_way.clear();
  bulk_stores.assign(threads, BulkStores());
  warpgroups.clear();
  warpgroups.resize(std::size_t(launch.cluster) * block_warpgroups());
  hopper_seed = seed;
  warp_registers.assign((threads + 31) / 32, launch.registers);
  free_registers.assign(launch.cluster, 0);
}

void end_block(unsigned rank) {
  if (launch.cluster > 1) end_cluster_block(rank);
  if (!agents.active) return;
  for (const BoxCopy& copy : loads_on_their_way)
    if (std::count(copy.bases.begin(), copy.bases.end(), base_of(rank)))
      report("protocol", "the block ends while a box is on its way to shared memory", 0);
  for (u32 t : threads_of(rank)) {
    if (bulk_stores[t].groups.empty() && bulk_stores[t].open.empty()) continue;
    report("protocol", "a thread ends while boxes that it stores are still read from shared memory", 0);
    bulk_stores[t].groups.push_back(bulk_stores[t].open);
    finish_stores(t, 0);
  }
  for (u32 g = rank * block_warpgroups(); g < (rank + 1) * block_warpgroups(); ++g)
    if (!warpgroups[g].products.empty()) report("protocol", "a warpgroup ends with products that it has not waited for", 0);
}
