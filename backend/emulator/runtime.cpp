// Runtime of the emulator: launches kernels, executes the calls of the compiled device code, and collects reports of
// errors. A process has one runtime, which all programs share, so its memory mappings are reused.
#include "emulator.h"

#include <dlfcn.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "asynchronous.h"
#include "cp_async.h"
#include "memory.h"
#include "scheduler.h"

// Dynamic shared memory of all blocks of a cluster, EMU_MOST_SHARED bytes each.
alignas(2 * EMU_MOST_ALIGNMENT) static unsigned char shared_memory[EMU_MOST_ALIGNMENT + EMU_MOST_SHARED * EMU_MOST_CLUSTER];

namespace {

using namespace emu;

// An error: its kind and text, the thread and instruction that caused it, and for races the other access.
struct Report {
  std::string kind, text;
  unsigned block, thread, other_block, other_thread;
  u64 pc, other_pc;
};

// Buffer argument of a kernel: `size` bytes of a buffer, starting at byte `begin`.
struct Argument {
  Buffer* buffer;
  u64 begin, size;
  bool holds(std::uintptr_t address, unsigned bytes) const {
    const std::uintptr_t first = buffer->base + begin;
    return address >= first && address + bytes <= first + size;
  }
};

struct Launch {
  void (*call)(void**) = nullptr;
  void** arguments = nullptr;
  const char* const* names = nullptr;
  std::vector<Argument> buffers;
  EmuIndex grid{1, 1, 1}, extent{1, 1, 1}, block{0, 0, 0};
  u64 shared_bytes = 0, accesses = 0, limit = 0;
  u32 first_serial = 0;
  unsigned cluster = 1, registers = 0;
};

std::vector<std::unique_ptr<Buffer>> all_buffers;
std::vector<Report> reports;
Scheduler scheduler;
Detector detector;
Copies copies;
Launch launch;
bool running = false;
std::unique_ptr<Cells> shared_cells;
// Start of the blocks' dynamic shared memory. It is aligned exactly as the kernel declares, so that assumptions of more
// are detected.
unsigned char* shared_area = shared_memory + EMU_MOST_ALIGNMENT;
// Start of the `__shared__` variables of fixed size of the running kernel, which the linker places in one section.
unsigned char* variables = nullptr;
std::size_t variables_size = 0;
constexpr std::size_t most_reports = 32, all_shared = std::size_t(EMU_MOST_SHARED) * EMU_MOST_CLUSTER;

std::uintptr_t address_of(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

unsigned block_threads();
unsigned my_rank();
unsigned block_number() {
  return my_rank() + launch.block.x + launch.grid.x * (launch.block.y + launch.grid.y * launch.block.z);
}

// Adds a report, unless there is one of the same kind at the same instruction: an error in a loop is reported once.
void report(const char* kind, const std::string& text, u64 pc, const Stamp* other = nullptr) {
  for (const Report& r : reports)
    if (r.kind == kind && r.pc == pc && (pc || r.text == text)) return;
  if (reports.size() >= most_reports) return;
  const unsigned thread = other ? other->thread : 0, each = block_threads();
  const unsigned first = other ? (other->serial - launch.first_serial) * launch.cluster : 0;
  reports.push_back({kind, text, block_number(), scheduler.current % each, first + thread / each, thread % each, pc,
                     other ? other->pc : 0});
}

[[noreturn]] void abort_launch() { scheduler.leave(Leave::aborted); }

const char* verb(bool write) { return write ? "writes" : "reads"; }

std::string bytes(u64 n) { return std::to_string(n) + (n == 1 ? " byte" : " bytes"); }

void check_alignment(const std::string& what, std::uintptr_t address, u64 alignment, u64 pc) {
  if (!running || address % alignment == 0) return;
  report("misaligned", what + ", " + bytes(address % alignment) + " past a multiple of " + std::to_string(alignment), pc);
  abort_launch();
}

bool meet_agents(std::size_t byte, unsigned size, bool write, u64 pc);
void touch_block(unsigned rank, u64 pc);
extern Agents agents;

void report_cell(bool missing, const Stamp* race, bool write, const std::string& place, u64 pc) {
  if (missing) report("uninitialised", "reads " + place + ", which nobody wrote", pc);
  if (!race) return;
  const Stamp other = *race;
  report("race", std::string(verb(write)) + " " + place + ", which another thread " + verb(detector.raced_with_write) +
                     ", with nothing that orders the two", pc, &other);
}

// Checks an access to shared memory. `cell` is the detector cell of its first byte: cells of the blocks' dynamic shared
// memory come first, then those of the variables of fixed size.
void shared_access(std::size_t cell, unsigned size, bool write, bool atomic, u64 pc) {
  const std::size_t rank = cell / EMU_MOST_SHARED, within = cell % EMU_MOST_SHARED;
  if (cell < all_shared && (rank >= launch.cluster || within + size > launch.shared_bytes)) {
    report("out-of-bounds", std::string(verb(write)) + " " + bytes(size) + " at byte " + std::to_string(within) +
                                " of shared memory, which has " + bytes(launch.shared_bytes), pc);
    abort_launch();
  }
  if (launch.cluster > 1 && cell < all_shared) touch_block(unsigned(rank), pc);
  if (launch.cluster > 1 && cell >= all_shared)
    report("protocol", "a shared variable of fixed size, which the emulator has only once in a cluster", pc);
  const Stamp me = detector.now(scheduler.current, pc, atomic);
  const bool brought = agents.active && cell < all_shared && meet_agents(cell, size, write, pc);
  for (unsigned i = 0; i < size; ++i) {
    Cell& c = (*shared_cells)[cell + i];
    const bool missing = (!write || atomic) && c.write.serial != detector.serial && !brought;
    const Stamp* race = write ? detector.write(c, me, true) : detector.read(c, me, true);
    const std::size_t byte = (cell + i) % EMU_MOST_SHARED;
    if (c.in_flight)
      return report("race", std::string(verb(write)) + " byte " + std::to_string(byte) +
                                " of shared memory, which an asynchronous copy may still be writing", pc);
    if (!missing && !race) continue;
    return report_cell(missing, race, write, "byte " + std::to_string(byte) + " of shared memory", pc);
  }
}

void global_access(unsigned index, std::uintptr_t address, unsigned size, bool write, bool atomic, u64 pc) {
  const Argument& argument = launch.buffers[index];
  Buffer& buffer = *argument.buffer;
  const char* name = launch.names[index];
  if (!argument.holds(address, size)) {
    const long long within = static_cast<long long>(address - buffer.base - argument.begin), item = buffer.item;
    const long long element = within >= 0 ? within / item : -((-within + item - 1) / item);
    report("out-of-bounds", std::string(verb(write)) + " element " + std::to_string(element) + " of " + name +
                                ", which has " + std::to_string(argument.size / buffer.item), pc);
    abort_launch();
  }
  const u64 offset = address - buffer.base;
  const Stamp me = detector.now(scheduler.current, pc, atomic);
  for (u64 element = offset / buffer.item; element * buffer.item < offset + size; ++element) {
    Cell& c = buffer.cells[element];
    const bool missing = (!write || atomic) && !buffer.initialised && c.write.serial == 0;
    const Stamp* race = write ? detector.write(c, me, false) : detector.read(c, me, false);
    if (missing || race)
      return report_cell(missing, race, write, "element " + std::to_string(element) + " of " + name, pc);
  }
}

void access(const void* pointer, unsigned size, bool write, bool aligned, const void* from, bool atomic = false) {
  if (!running) return;
  const std::uintptr_t address = address_of(pointer);
  const u64 pc = reinterpret_cast<u64>(from) - 1;
  if (aligned && address % size) check_alignment(verb(write) + (" " + bytes(size)) + " at once", address, size, pc);
  if (scheduler.on_stack(address)) return;
  if (++launch.accesses > launch.limit) {
    report("too long", "gave up after " + std::to_string(launch.limit) + " accesses", 0);
    abort_launch();
  }
  const std::size_t byte = address - address_of(shared_area), variable = address - address_of(variables);
  if (byte < all_shared) return shared_access(byte, size, write, atomic, pc);
  if (variable < variables_size) return shared_access(all_shared + variable, size, write, atomic, pc);
  // Two loops, because several arguments may be parts of one buffer: an argument that contains the access comes first.
  for (unsigned i = 0; i < launch.buffers.size(); ++i)
    if (launch.buffers[i].holds(address, size)) return global_access(i, address, size, write, atomic, pc);
  for (unsigned i = 0; i < launch.buffers.size(); ++i)
    if (launch.buffers[i].buffer->near(address)) return global_access(i, address, size, write, atomic, pc);
  report("out-of-bounds", std::string(verb(write)) + " memory that is none of the kernel's", pc);
  abort_launch();
}

// ---- waiting ----

void wait_as(State state, int line, const char* name) {
  Fiber& f = scheduler.self();
  f.state = state;
  f.line = line;
  f.name = name;
  scheduler.wait();
}

#include "cluster.h"
#include "tensor_core.h"
#include "sm90.h"

#include "waiting.h"

void meet_warp(int line, const char* name, unsigned mask, unsigned long long value, int source) {
  Fiber& f = scheduler.self();
  if (!(mask >> (scheduler.current % 32) & 1))
    report("shuffle", std::string(name) + " (line " + std::to_string(line) + ") by a lane that its mask leaves out", 0);
  f.mask = mask | 1u << (scheduler.current % 32);
  f.value = value;
  f.source = source;
  wait_as(State::warp, line, name);
}

// ---- launching ----

void thread_body() {
  launch.call(launch.arguments);
  scheduler.leave(Leave::finished);
}

void clear_shared() {
  for (unsigned rank = 0; rank < launch.cluster; ++rank)
    std::memset(shared_area + base_of(rank), 0xff, launch.shared_bytes);
  if (variables_size) std::memset(variables, 0xff, variables_size);
}

// Runs one block, or all blocks of one cluster. Returns false if an error ended the launch.
bool run_block(u64& seed) {
  const unsigned threads = block_threads() * launch.cluster;
  detector.start_block(threads);
  copies.start_block(threads, seed, *shared_cells);
  start_hopper(threads, seed);
  cluster_blocks.assign(launch.cluster, ClusterBlock());
  clear_shared();
  if (!scheduler.start(threads, thread_body)) {
    report("internal", "no memory for the stacks of the threads", 0);
    return false;
  }
  for (unsigned done = 0; done < threads;) {
    bool ran = false;
    unsigned waiting = 0;  // a bit for each state that some thread is in
    for (unsigned t : scheduler.order(seed)) {
      waiting |= 1u << unsigned(scheduler.fibers[t].state);
      if (scheduler.fibers[t].state != State::ready) continue;
      ran = true;
      const Leave left = scheduler.run(t);
      if (left == Leave::aborted) return false;
      if (left == Leave::finished) {
        scheduler.fibers[t].state = State::done;
        ++done;
        if (++cluster_blocks[rank_of(t)].done == block_threads()) end_block(rank_of(t));
      }
    }
    if (ran && deliver_something(false)) continue;
    if (ran || done == threads) continue;
    const auto any = [&](State state) { return (waiting >> unsigned(state) & 1) != 0; };
    if ((any(State::mbarrier) && open_mbarriers()) || (any(State::products) && open_warpgroups()) ||
        (any(State::warp) && open_warp()) || (any(State::named) && open_named_barrier()) ||
        (any(State::barrier) && open_barrier()) || (any(State::cluster) && open_cluster_barrier()) ||
        (any(State::registers) && open_registers()))
      continue;
    if (deliver_something(true)) continue;
    report("deadlock", scheduler.who_waits(), 0);
    return false;
  }
  return true;
}

struct sigaction old_actions[4];
const int signals[4] = {SIGSEGV, SIGBUS, SIGFPE, SIGABRT};
bool process_aborted = false;

void on_signal(int number, siginfo_t*, void*) {
  if (number == SIGABRT && !scheduler.inside) return;  // no thread to leave: abort() ends the process
  if (number == SIGABRT)
    process_aborted = true;  // reported after the launch: the allocator may have called abort()
  else
    report(number == SIGFPE ? "arithmetic" : "out-of-bounds",
           number == SIGFPE ? "integer division by zero, or one that overflows" : "touches memory that is none of its own",
           0);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, number);
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
  abort_launch();
}

// Whether emu_print prints: in the run with the first order of threads.
bool prints = true;

// Runs the launch that set_launch has set up, block after block. Returns 1 if an error ended it early, else 0.
int run_launch(u64 seed) {
  prints = seed == 0;
  launch.first_serial = detector.first_of_launch = detector.serial + 1;
  stack_t alternative{}, old_stack{};
  static unsigned char signal_stack[64 * 1024];
  alternative.ss_sp = signal_stack;
  alternative.ss_size = sizeof signal_stack;
  sigaltstack(&alternative, &old_stack);
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int i = 0; i < 4; ++i) sigaction(signals[i], &action, &old_actions[i]);
  process_aborted = false;
  running = true;
  bool good = true;
  const EmuIndex grid = launch.grid;
  for (unsigned z = 0; good && z < grid.z; ++z)
    for (unsigned y = 0; good && y < grid.y; ++y)
      for (unsigned x = 0; good && x < grid.x; x += launch.cluster) {
        launch.block = {x, y, z};
        good = run_block(seed);
      }
  running = false;
  for (int i = 0; i < 4; ++i) sigaction(signals[i], &old_actions[i], nullptr);
  sigaltstack(&old_stack, nullptr);
  if (process_aborted) report("internal", "the emulator called abort(), which tells nothing about the kernel", 0);
  return good ? 0 : 1;
}

void set_launch(void (*call)(void**), void** arguments, const unsigned* grid, const unsigned* extent, u64 shared,
                unsigned cluster, unsigned registers) {
  launch = Launch();
  launch.cluster = cluster;
  launch.registers = registers;
  launch.call = call;
  launch.arguments = arguments;
  launch.grid = {grid[0], grid[1], grid[2]};
  launch.extent = {extent[0], extent[1], extent[2]};
  launch.shared_bytes = std::min<u64>(shared, EMU_MOST_SHARED);
  if (!shared_cells) shared_cells = std::make_unique<Cells>(all_shared + EMU_MOST_SHARED);
  variables_size = 0;
}

}  // namespace

extern "C" {

// ---- called by Python (runtime.py) ----

int emu_buffer_new(u64 size, unsigned item, int initialised) {
  try {
    auto buffer = std::make_unique<Buffer>(size, item, initialised != 0);
    if (!buffer->valid()) return -1;
    all_buffers.push_back(std::move(buffer));
  } catch (const std::bad_alloc&) {
    return -1;
  }
  return int(all_buffers.size()) - 1;
}
void* emu_buffer_data(int id) { return reinterpret_cast<void*>(all_buffers[id]->base); }
// Returns the number of elements that no kernel has written, and sets `first` to the index of the first.
u64 emu_buffer_unwritten(int id, u64* first) {
  Buffer& buffer = *all_buffers[id];
  u64 missing = 0;
  for (u64 i = buffer.size / buffer.item; i-- > 0;)
    if (buffer.cells[i].write.serial == 0) {
      ++missing;
      *first = i;
    }
  return missing;
}
void emu_reset() {
  all_buffers.clear();
  reports.clear();
}

// Runs a kernel. Its arguments are, in order:
//   count buffers: of buffer ids[i], the sizes[i] bytes from byte begins[i] on; names[i] is its name in reports
//   map_count tensor maps: maps[i]
//   value_count numbers: the value at values[i]
// `limit`: maximum number of memory accesses. `cluster`: blocks per cluster. `registers`: registers per thread at
// launch. Returns 1 if an error ended the launch early, else 0.
int emu_launch(void (*call)(void**), const unsigned* grid, const unsigned* extent, u64 shared_bytes, const int* ids,
               const char* const* names, int count, const u64* begins, const u64* sizes, const BoxMap* maps,
               int map_count, void* const* values, int value_count, u64 seed, u64 limit, unsigned cluster,
               unsigned registers) {
  std::vector<void*> pointers(count), arguments(count + map_count + value_count);
  set_launch(call, arguments.data(), grid, extent, shared_bytes, cluster, registers);
  for (int i = 0; i < count; ++i) {
    pointers[i] = static_cast<char*>(emu_buffer_data(ids[i])) + begins[i];
    arguments[i] = &pointers[i];
    launch.buffers.push_back({all_buffers[ids[i]].get(), begins[i], sizes[i]});
  }
  for (int i = 0; i < map_count; ++i) arguments[count + i] = const_cast<BoxMap*>(maps + i);
  for (int i = 0; i < value_count; ++i) arguments[count + map_count + i] = values[i];
  launch.names = names;
  launch.limit = limit;
  try {
    return run_launch(seed);
  } catch (const std::exception& error) {
    running = false;
    report("internal", std::string("the emulator failed: ") + error.what(), 0);
    return 1;
  }
}

u64 emu_accesses() { return launch.accesses; }
int emu_report_count() { return int(reports.size()); }
const char* emu_report_kind(int i) { return reports[i].kind.c_str(); }
const char* emu_report_text(int i) { return reports[i].text.c_str(); }
void emu_forget_reports() { reports.clear(); }
static u64 place_in_file(u64 pc) {
  Dl_info info{};
  return pc && dladdr(reinterpret_cast<void*>(pc), &info) ? pc - reinterpret_cast<u64>(info.dli_fbase) : 0;
}
void emu_report_numbers(int i, u64* out) {
  const Report& r = reports[i];
  out[0] = r.block;
  out[1] = r.thread;
  out[2] = r.other_block;
  out[3] = r.other_thread;
  out[4] = place_in_file(r.pc);
  out[5] = place_in_file(r.other_pc);
}

// ---- called by device code ----

EmuIndex emu_thread_index() {
  const unsigned x = launch.extent.x, y = launch.extent.y;
  const unsigned t = launch.cluster == 1 ? scheduler.current : scheduler.current % block_threads();
  if (t < x) return {t, 0, 0};  // the most frequent call and the most frequent case, so it avoids the divisions
  return {t % x, t / x % y, t / x / y};
}
EmuIndex emu_block_index() { return {launch.block.x + my_rank(), launch.block.y, launch.block.z}; }
unsigned char* emu_shared_start(unsigned alignment) {
  if (shared_area != shared_memory + alignment) {
    shared_area = shared_memory + alignment;
    clear_shared();
  }
  return shared_area + base_of(running ? my_rank() : 0);
}
void emu_shared_variables(unsigned char* start, unsigned char* stop) {
  if (variables == start && variables_size) return;
  variables = start;
  variables_size = std::min<std::size_t>(std::size_t(stop - start), EMU_MOST_SHARED);
  clear_shared();
}
EmuIndex emu_block_extent() { return launch.extent; }
EmuIndex emu_grid_extent() { return launch.grid; }

void emu_barrier(int line, const char* name) { wait_as(State::barrier, line, name); }
void emu_named_barrier(int line, const char* name, int id, int threads) {
  scheduler.self().barrier_id = unsigned(id);
  scheduler.self().barrier_threads = unsigned(threads);
  wait_as(State::named, line, name);
}
void emu_sync_warp(int line, const char* name, unsigned mask) { meet_warp(line, name, mask, 0, -1); }
unsigned long long emu_exchange(int line, const char* name, unsigned mask, unsigned long long value, int source) {
  meet_warp(line, name, mask, value, source);
  return scheduler.self().result;
}
unsigned emu_ballot(int line, const char* name, unsigned mask, int predicate) {
  meet_warp(line, name, mask, predicate != 0, -2);
  return unsigned(scheduler.self().result);
}
void emu_copy_async(void* target, const void* source, unsigned size, bool inside) {
  const void* from = __builtin_return_address(0);
  const u64 pc = reinterpret_cast<u64>(from) - 1;
  if (inside) access(source, size, false, true, from);
  access(target, size, true, true, from);
  const std::size_t cell = address_of(target) - address_of(shared_area);
  if (cell >= all_shared) {
    report("out-of-bounds", "copies asynchronously to what is no shared memory", pc);
    abort_launch();
  }
  copies.start(scheduler.current, target, cell, inside ? source : nullptr, size, pc);
}
void emu_copy_commit() { copies.commit(scheduler.current); }
void emu_copy_wait(int pending) { copies.wait(scheduler.current, std::size_t(pending), detector); }
void emu_vector_access(const void* address, unsigned size) {
  check_alignment("an access of " + bytes(size) + " at once", address_of(address), size,
                  reinterpret_cast<u64>(__builtin_return_address(0)) - 1);
}
void emu_atomic_access(void* address, unsigned size) {
  access(address, size, true, true, __builtin_return_address(0), true);
}
void emu_trap(int line, const char* message) {
  report("trap", std::string(message) + " (line " + std::to_string(line) + ")", 0);
  abort_launch();
}

// A failed run-time check in the kernel's text: an error of the caller, not of the compiler.
void emu_assert(const char* message, long long value) {
  report("assertion", std::string(message) + ": " + std::to_string(value), 0);
  abort_launch();
}

// Prints a line of the kernel, in the run with the first order of threads only.
void emu_print(const char* format, ...) {
  if (!prints) return;
  va_list values;
  va_start(values, format);
  vprintf(format, values);
  va_end(values);
  fflush(stdout);
}

#include "sm90_calls.h"

float emu_add_products(float sum, const float* a, const float* b, int terms) {
  return add_products(sum, a, b, terms, ampere_extra);
}
#include "inserted.h"
#include "standalone.h"
}
