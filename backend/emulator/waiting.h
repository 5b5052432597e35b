// Barriers: block barriers, named barriers, and synchronisation within a warp. Each open_* function checks whether
// enough threads wait and makes these ready. It returns true if a barrier has opened. Part of runtime.cpp, whose
// functions it calls.
#pragma once

void join(const std::vector<u32>& together) {
  detector.clocks.join(together, detector.epoch);
  agents.join(together);
}

// Opens the barrier of one block if every thread of the block that has not ended waits at it.
bool open_block_barrier(const std::vector<u32>& block) {
  const Fiber* first = nullptr;
  bool divergent = false, ended = false;
  for (u32 t : block) {
    const Fiber& f = scheduler.fibers[t];
    if (f.state == State::done) ended = true;
    else if (f.state != State::barrier) return false;
    else if (!first) first = &f;
    else divergent |= f.line != first->line;
  }
  if (!first) return false;
  if (divergent || ended) report("divergent barrier", "not every thread reaches it: " + scheduler.who_waits(), 0);
  for (u32 t : block)
    if (scheduler.fibers[t].state == State::barrier) scheduler.fibers[t].state = State::ready;
  if (launch.cluster > 1) {
    join(block);
    return true;
  }
  agents.join(block);
  ++detector.epoch;
  return true;
}

bool open_barrier() {
  bool opened = false;
  for (unsigned rank = 0; rank < launch.cluster; ++rank) opened |= open_block_barrier(threads_of(rank));
  return opened;
}

bool open_named_barrier() {
  for (unsigned t = 0; t < scheduler.count(); ++t) {
    const Fiber& f = scheduler.fibers[t];
    if (f.state != State::named) continue;
    std::vector<u32> members;
    for (u32 o : threads_of(rank_of(t))) {
      const Fiber& g = scheduler.fibers[o];
      if (g.state == State::named && g.barrier_id == f.barrier_id) members.push_back(o);
    }
    if (members.size() < f.barrier_threads) continue;
    if (members.size() > f.barrier_threads)
      report("divergent barrier", "more threads than it counts: " + scheduler.who_waits(), 0);
    join(members);
    for (u32 o : members) scheduler.fibers[o].state = State::ready;
    return true;
  }
  return false;
}

// Synchronises lanes of a warp (syncwarp, shuffles, votes) if all lanes of a mask wait with the same mask. `source` is
// the lane that a shuffle reads, -1 for syncwarp, -2 for a vote.
bool open_warp() {
  bool opened = false;
  for (unsigned t = 0; t < scheduler.count(); ++t) {
    Fiber& f = scheduler.fibers[t];
    if (f.state != State::warp) continue;
    const unsigned warp = t / 32 * 32;
    std::vector<u32> members;
    bool all = true, divergent = false;
    unsigned votes = 0;
    for (unsigned lane = 0; lane < 32 && warp + lane < scheduler.count(); ++lane) {
      if (!(f.mask >> lane & 1)) continue;
      const Fiber& g = scheduler.fibers[warp + lane];
      all &= g.state == State::warp && g.mask == f.mask;
      divergent |= g.line != f.line;
      votes |= (g.value != 0 ? 1u : 0u) << lane;
      members.push_back(warp + lane);
    }
    if (!all) continue;
    if (divergent) report("divergent shuffle", "lanes meet in different places: " + scheduler.who_waits(), 0);
    for (u32 o : members) {
      Fiber& g = scheduler.fibers[o];
      if (g.source == -2) g.result = votes;
      else if (g.source >= 0) {
        const bool member = g.source < 32 && (g.mask >> g.source & 1) && warp + g.source < scheduler.count();
        if (!member)
          report("shuffle", std::string(g.name) + " (line " + std::to_string(g.line) + ") reads lane " +
                                std::to_string(g.source) + ", which takes no part", 0);
        g.result = member ? scheduler.fibers[warp + g.source].value : ~0ull;
      }
    }
    const bool orders = f.source == -1;
    if (orders) join(members);
    for (u32 o : members) scheduler.fibers[o].state = State::ready;
    opened = true;
  }
  return opened;
}

