// Functions that device code for sm_90a calls; emulator.h documents them. Part of runtime.cpp.
#pragma once

#define PLACE (reinterpret_cast<u64>(__builtin_return_address(0)) - 1)

void emu_mbar_init(void* barrier, int arrivals) {
  const u32 place = shared_place(barrier, 8, "an mbarrier", PLACE);
  if (place % 8) report("misaligned", "an mbarrier at byte " + std::to_string(place % EMU_MOST_SHARED), PLACE);
  shared_access(place, 8, true, false, PLACE);
  Mbarrier b;
  b.arrivals = b.missing = u32(arrivals);
  b.maker = scheduler.current;
  mbarriers[place] = b;
  agents.active = true;
}
// Arrives at an mbarrier. With `async` (an arrival without release semantics) it passes on only the knowledge of
// asynchronous operations, not the thread's own stores.
static void mbar_arrive(void* barrier, int bytes, bool async, u64 pc) {
  Mbarrier& b = barrier_at(barrier, pc);
  if (!b.missing) {
    report("protocol", "more arrivals at an mbarrier than it counts", pc);
    abort_launch();
  }
  const unsigned t = scheduler.current;
  if (async) {
    Knowledge::raise(b.gathered.agents, agents.threads[t].agents);
  } else {
    b.gathered.learn(agents.threads[t]);
    detector.clocks.give(t, detector.epoch, b.clocks, b.epoch);
  }
  b.bytes += bytes;
  --b.missing;
  complete_phase(b);
}
void emu_mbar_arrive(void* barrier, int bytes) { mbar_arrive(barrier, bytes, false, PLACE); }
// Returns the address in block `rank` of the cluster that corresponds to `p`.
static void* peer(const void* p, int rank, u64 pc) {
  if (rank < 0 || unsigned(rank) >= launch.cluster) {
    report("out-of-bounds", "block " + std::to_string(rank) + " of a cluster of " + std::to_string(launch.cluster), pc);
    abort_launch();
  }
  return shared_area + base_of(unsigned(rank)) + shared_place(p, 1, "a block", pc) % EMU_MOST_SHARED;
}
const void* emu_cluster_peer(const void* p, int rank) { return peer(p, rank, PLACE); }
void emu_mbar_arrive_at(void* barrier, int rank, bool async) {
  mbar_arrive(peer(barrier, rank, PLACE), 0, async, PLACE);
}
void emu_cluster_barrier() { wait_as(State::cluster, 0, "cluster_barrier"); }
void emu_mbar_wait(void* barrier, int parity) {
  Mbarrier& b = barrier_at(barrier, PLACE);
  Fiber& f = scheduler.self();
  f.mask = shared_place(barrier, 8, "an mbarrier", PLACE);
  f.barrier_id = unsigned(parity);
  while (!b.passed(u32(parity))) wait_as(State::mbarrier, 0, "mbar_wait");
  if (!b.phase) return;
  agents.threads[scheduler.current].learn(b.complete);
  detector.clocks.take(scheduler.current, detector.epoch, b.complete_clocks, b.complete_epoch);
}
void emu_fence_mbar_init() {
  for (auto& entry : mbarriers) entry.second.fenced |= entry.second.maker == scheduler.current;
}
void emu_fence_async() {
  const unsigned t = scheduler.current;
  Knowledge::set(agents.threads[t].fenced, t, detector.clocks.clock(t));
  detector.clocks.step(t);
  agents.active = true;
}

// Starts a TMA load of a box into all blocks whose bits are set in `blocks`, or into the running block if it is 0.
static void load_box(void* target, const void* map, void* barrier, const int* at, int rank, unsigned blocks, u64 pc) {
  BoxCopy copy = new_box(map, target, at, rank, "a box", pc);
  const u32 place = shared_place(barrier, 8, "an mbarrier", pc);
  copy.barrier = place % EMU_MOST_SHARED;
  // Boxes with the same mbarrier and the same target blocks belong to one agent.
  copy.agent = agents.agent(Agents::loads, place | blocks << 21);
  copy.clock = agents.agents[copy.agent].start();
  touch_global(copy, false, pc);
  if (blocks) copy.bases.clear();
  for (unsigned r = 0; blocks >> r; ++r)
    if (blocks >> r & 1) copy.bases.push_back(base_of(r));
  for (u32 base : copy.bases) {
    if (!barrier_at(shared_area + base + copy.barrier, pc).fenced)
      report("fence", "a box signals an mbarrier that was set up without a fence", pc);
    for (u32 byte = 0; byte < copy.map.bytes(); byte += Agents::granule)
      use_granule(base + copy.address + byte, scheduler.current, {copy.agent, copy.clock, pc}, true, "a box");
    std::memset(shared_area + base + copy.address, 0xff, copy.map.bytes());
    if (launch.cluster > 1) cluster_blocks[base / EMU_MOST_SHARED].boxes.push_back({copy.agent, {copy.clock, pc}});
  }
  loads_on_their_way.push_back(copy);
  if (hopper_seed == 1) deliver(loads_on_their_way.size() - 1);
}
void emu_tma_load(void* target, const void* map, void* barrier, const int* at, int rank) {
  load_box(target, map, barrier, at, rank, 0, PLACE);
}
void emu_tma_multicast(void* target, const void* map, void* barrier, const int* at, int rank, int blocks) {
  load_box(target, map, barrier, at, rank, unsigned(blocks), PLACE);
}
void emu_tma_store(const void* map, const void* source, const int* at, int rank) {
  const u64 pc = PLACE;
  const unsigned t = scheduler.current;
  BoxCopy copy = new_box(map, source, at, rank, "a stored box", pc);
  copy.agent = agents.agent(Agents::stores, t);
  copy.clock = agents.agents[copy.agent].start();
  for (u32 byte = 0; byte < copy.map.bytes(); byte += Agents::granule)
    use_granule(copy.bases[0] + copy.address + byte, t, {copy.agent, copy.clock, pc}, false, "a stored box");
  touch_global(copy, true, pc);
  if (happens_early()) write_box(copy);
  bulk_stores[t].open.push_back(copy);
}
void emu_bulk_commit() {
  BulkStores& mine = bulk_stores[scheduler.current];
  mine.groups.push_back(std::move(mine.open));
  mine.open.clear();
}
void emu_bulk_wait(int pending) { finish_stores(scheduler.current, std::size_t(pending)); }

void emu_wgmma(float* d, int columns, unsigned long long a_at, const void* a, unsigned long long b_at, bool accumulate,
               int a_transposed, int b_transposed, int format) {
  const u64 pc = PLACE;
  Warpgroup& w = my_warpgroup();
  const u32 t = my_number(), number = w.started[t]++, index = number - w.computed;
  const u32 agent = agents.agent(Agents::products, my_warpgroup_number());
  if (index == w.products.size()) {
    const u32 base = base_of(my_rank());
    Product p{columns, a_transposed, b_transposed, format, a_at, b_at, base, accumulate, a != nullptr, w.groups[t], 0,
              {}, {}, {}, pc};
    w.products.push_back(p);
  }
  Product& p = w.products[index];
  if (p.columns != columns || p.a_at != a_at || p.b_at != b_at || p.accumulate != accumulate || p.group != w.groups[t])
    report("divergent", "the threads of a warpgroup start different products", pc);
  ++p.issued;
  p.d[t] = d;
  if (a) std::memcpy(p.a[t], p.registers[t] = a, sizeof p.a[t]);
  Accumulators& mine = w.accumulators[t][d];
  if ((!mine.pending || a) && !w.fenced[t])
    report("fence", "a product takes registers that were written without a fence since", pc);
  if (!mine.pending++) {
    mine.values.assign(d, d + columns / 2);
    std::memset(d, 0xff, std::size_t(columns) / 2 * sizeof(float));
  }
  if (t % 32 == 0) use_operands(p, scheduler.current, {agent, number + 1, pc});
}
void emu_wgmma_fence() { my_warpgroup().fenced[my_number()] = true; }
void emu_wgmma_commit() { ++my_warpgroup().groups[my_number()]; }
void emu_wgmma_wait(int pending) {
  agents.active = true;
  scheduler.self().mask = unsigned(pending);
  wait_as(State::products, 0, "wgmma_wait");
}
void emu_set_registers(int n, bool more) {
  if (!launch.registers)
    return report("protocol", "setmaxnreg is ignored: no launch bounds say how many registers a thread starts with", PLACE);
  scheduler.self().mask = unsigned(n);
  scheduler.self().barrier_id = more;
  wait_as(State::registers, 0, more ? "take_registers" : "give_registers");
}
unsigned long long emu_shared_address(const void* p) {
  return (address_of(p) - address_of(shared_area)) % EMU_MOST_SHARED;
}

#undef PLACE
