// Interface between the emulator's runtime and emulated device code. It includes nothing of the C++ library.
//
// Device code is compiled by the host compiler with instrumentation of every memory access (the calls that
// -fsanitize=thread inserts). The runtime defines these calls itself, so that it sees each access before it happens.
#pragma once

// Maximum shared memory of a block in bytes. It exceeds the hardware's limit, so that small overruns stay inside.
#define EMU_MOST_SHARED (256 * 1024)
// Maximum alignment in bytes with which a kernel may declare its shared memory.
#define EMU_MOST_ALIGNMENT 1024
// Maximum number of blocks in a cluster.
#define EMU_MOST_CLUSTER 8

// Element types of tensor core operands. tf32 is stored as f32, whose last 13 bits tensor cores ignore.
enum EmuFormat { emu_bf16, emu_f16, emu_tf32 };

// Decodes a tensor core operand from the low 16 or 32 bits of `x`.
inline float emu_factor(unsigned x, int format) {
  unsigned u = format == emu_tf32 ? x & 0xffffe000u : x << 16;
  float r;
  if (format == emu_f16) {
    const unsigned sign = (x & 0x8000u) << 16, e = x >> 10 & 31, f = x & 0x3ff;
    if (e == 0) {
      const float v = float(f) * 5.9604644775390625e-8f;
      return sign ? -v : v;
    }
    u = sign | f << 13 | (e == 31 ? 0x7f800000u : (e + 112) << 23);
  }
  __builtin_memcpy(&r, &u, 4);
  return r;
}

struct EmuIndex {
  unsigned x, y, z;
};

extern "C" {
// Indices of the running thread and block, and extents of block and grid.
EmuIndex emu_thread_index();
EmuIndex emu_block_index();
EmuIndex emu_block_extent();
EmuIndex emu_grid_extent();
// Returns the start of the block's dynamic shared memory. `alignment`: the declared alignment in bytes.
unsigned char* emu_shared_start(unsigned alignment);
// Announces the memory of the kernel's `__shared__` variables of fixed size.
void emu_shared_variables(unsigned char* start, unsigned char* stop);

// Clusters: the barrier; the address in the shared memory of block `rank` that corresponds to `p`; an arrival at an
// mbarrier of block `rank`; a TMA copy to all blocks whose bits in `blocks` are set.
void emu_cluster_barrier();
const void* emu_cluster_peer(const void* p, int rank);
void emu_mbar_arrive_at(void* barrier, int rank, bool async);
void emu_tma_multicast(void* target, const void* map, void* barrier, const int* at, int rank, int blocks);

// Barriers of a block, of `threads` threads, and of a warp. `line` is the line in the printed kernel, for reports.
void emu_barrier(int line, const char* name);
void emu_named_barrier(int line, const char* name, int id, int threads);
void emu_sync_warp(int line, const char* name, unsigned mask);
// Shuffle: exchanges 8 bytes among the lanes of `mask` and returns the value of lane `source`.
unsigned long long emu_exchange(int line, const char* name, unsigned mask, unsigned long long value, int source);
// Bit i of the result is set if lane i of `mask` passed a true predicate.
unsigned emu_ballot(int line, const char* name, unsigned mask, int predicate);

// cp.async: copies `size` bytes into shared memory, or writes zeros if not `inside`. Commit closes a group of copies.
// Wait completes all groups of this thread except the newest `pending`.
void emu_copy_async(void* target, const void* source, unsigned size, bool inside);
void emu_copy_commit();
void emu_copy_wait(int pending);

// mbarriers: initialise; arrive and announce `bytes` that asynchronous copies will bring; wait for the phase of a
// parity.
void emu_mbar_init(void* barrier, int arrivals);
void emu_mbar_arrive(void* barrier, int bytes);
void emu_mbar_wait(void* barrier, int parity);
void emu_fence_mbar_init();
// Async proxy fence: makes earlier stores of this thread visible to TMA copies and wgmma.
void emu_fence_async();

// TMA loads and stores. `at`: coordinates of the first element of the box, as many as `rank`.
void emu_tma_load(void* target, const void* map, void* barrier, const int* at, int rank);
void emu_tma_store(const void* map, const void* source, const int* at, int rank);
void emu_bulk_commit();
void emu_bulk_wait(int pending);

// wgmma: d = a * b, plus d if `accumulate`; d is 64 x columns, and the contraction is 32 bytes deep. `d` points to the
// columns / 2 elements of this thread. `a` points to the thread's 16 bytes of the left operand, or is null if that is
// in shared memory; `a_at` and `b_at` are matrix descriptors. `format` is an EmuFormat.
void emu_wgmma(float* d, int columns, unsigned long long a_at, const void* a, unsigned long long b_at, bool accumulate,
               int a_transposed, int b_transposed, int format);
// Adds `terms` products to `sum` for mma.sync, as an Ampere tensor core does in one step.
float emu_add_products(float sum, const float* a, const float* b, int terms);
void emu_wgmma_fence();
void emu_wgmma_commit();
void emu_wgmma_wait(int pending);
// setmaxnreg: each thread of the warp has `n` registers from here on. With `more` the warp takes registers that other
// warps have released and waits for them; otherwise it releases some.
void emu_set_registers(int n, bool more);
unsigned long long emu_shared_address(const void* p);

// Checks in addition to the compiler's instrumentation: alignment of a vector access.
void emu_vector_access(const void* address, unsigned size);
// An atomic access, which never races with another atomic access.
void emu_atomic_access(void* address, unsigned size);
[[noreturn]] void emu_trap(int line, const char* message);
[[noreturn]] void emu_assert(const char* message, long long value);
void emu_print(const char* format, ...);
}
