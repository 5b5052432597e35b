// Thread block clusters: the blocks of a cluster run together. Each has its own shared memory, which the other blocks
// may access while the block runs. Part of runtime.cpp, whose functions it calls.
#pragma once

unsigned block_threads() { return launch.extent.x * launch.extent.y * launch.extent.z; }
unsigned rank_of(unsigned thread) { return thread / block_threads(); }
unsigned my_rank() { return launch.cluster == 1 ? 0 : rank_of(scheduler.current); }
u32 base_of(unsigned rank) { return rank * EMU_MOST_SHARED; }

std::vector<u32> threads_of(unsigned rank) {
  std::vector<u32> threads(block_threads());
  for (u32 i = 0; i < threads.size(); ++i) threads[i] = rank * block_threads() + i;
  return threads;
}

// Access of a thread to the shared memory of another block. A thread of the accessed block must have synchronised with
// it before that block ends.
struct Foreign {
  u32 epoch, clock;
  u64 pc;
};
struct ClusterBlock {
  unsigned done = 0;
  std::map<u32, Foreign> uses;                             // thread of another block -> its last access
  std::vector<std::pair<u32, std::pair<u32, u64>>> boxes;  // TMA copies to this block: agent, clock, program counter
};
std::vector<ClusterBlock> cluster_blocks;

void touch_block(unsigned rank, u64 pc) {
  if (rank == my_rank()) return;
  const unsigned t = scheduler.current;
  cluster_blocks[rank].uses[t] = {detector.epoch, detector.clocks.clock(t), pc};
  if (cluster_blocks[rank].done == block_threads())
    report("protocol", "touches shared memory of a block of the cluster that has ended", pc);
}

void end_cluster_block(unsigned rank) {
  const std::vector<u32> mine = threads_of(rank);
  for (const auto& use : cluster_blocks[rank].uses) {
    bool known = use.second.epoch < detector.epoch;
    for (u32 t : mine) known |= detector.clocks.seen(t, use.first, detector.epoch) >= use.second.clock;
    if (!known)
      report("protocol", "block " + std::to_string(rank) +
                             " of a cluster ends while another may still touch its shared memory", use.second.pc);
  }
  for (const auto& box : cluster_blocks[rank].boxes) {
    bool known = false;
    for (u32 t : mine) known |= Knowledge::get(agents.threads[t].agents, box.first) >= box.second.first;
    if (!known)
      report("protocol", "block " + std::to_string(rank) +
                             " of a cluster ends while a box may still be on its way to it", box.second.second);
  }
}

// Opens the cluster barrier if every thread that has not ended waits at it. Returns true if it opens. Threads that
// have ended do not pass on their knowledge.
bool open_cluster_barrier() {
  std::vector<u32> waiting;
  for (unsigned t = 0; t < scheduler.count(); ++t) {
    const Fiber& f = scheduler.fibers[t];
    if (f.state == State::cluster) waiting.push_back(t);
    else if (f.state != State::done) return false;
  }
  if (waiting.empty()) return false;
  for (u32 t : waiting) {
    scheduler.fibers[t].state = State::ready;
    if (cluster_blocks[rank_of(t)].done)
      report("divergent barrier", "not every thread of the block reaches it: " + scheduler.who_waits(), 0);
  }
  agents.join(waiting);
  if (waiting.size() == scheduler.count()) ++detector.epoch;
  else detector.clocks.join(waiting, detector.epoch);
  return true;
}
