// What the emulator's runtime and the emulated device code share: the entry points, and nothing of the C++ library.
//
// Device code is compiled by the host compiler with instrumentation of every memory access (the calls that
// -fsanitize=thread inserts); the runtime defines those calls itself, so that it sees each access before it happens.
#pragma once

// Bytes of shared memory that a block may have at most, with room for what runs over.
#define EMU_MOST_SHARED (256 * 1024)
// Bytes to which that may be declared to be aligned at most.
#define EMU_MOST_ALIGNMENT 1024
// Blocks that a cluster may have at most.
#define EMU_MOST_CLUSTER 8

// How factors of products are stored: in 16 bits, or as f32, of which a product ignores the last 13 bits.
enum EmuFormat { emu_bf16, emu_f16, emu_tf32 };

// What a product takes of the low bits of `x`.
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
// Who runs.
EmuIndex emu_thread_index();
EmuIndex emu_block_index();
EmuIndex emu_block_extent();
EmuIndex emu_grid_extent();
// Where the block's shared memory starts, which is declared with an alignment.
unsigned char* emu_shared_start(unsigned alignment);
// Where the device code that runs has its shared variables of fixed size.
void emu_shared_variables(unsigned char* start, unsigned char* stop);

// Clusters: their barrier, the place of something in another block's shared memory, an arrival at an mbarrier there, and
// a box for the blocks whose bits are set.
void emu_cluster_barrier();
const void* emu_cluster_peer(const void* p, int rank);
void emu_mbar_arrive_at(void* barrier, int rank, bool async);
void emu_tma_multicast(void* target, const void* map, void* barrier, const int* at, int rank, int blocks);

// Waiting. `line` is the line of the printed text.
void emu_barrier(int line, const char* name);
void emu_named_barrier(int line, const char* name, int id, int threads);
void emu_sync_warp(int line, const char* name, unsigned mask);
// Exchange 8 bytes among the lanes of `mask`: gives the value of lane `source`.
unsigned long long emu_exchange(int line, const char* name, unsigned mask, unsigned long long value, int source);
// Bit i of the result: whether lane i of `mask` called with a predicate that holds.
unsigned emu_ballot(int line, const char* name, unsigned mask, int predicate);

// Asynchronous copies into shared memory: `size` bytes, zeros unless `inside`. A group is closed by commit; wait lets
// all groups of this thread arrive but the `pending` newest.
void emu_copy_async(void* target, const void* source, unsigned size, bool inside);
void emu_copy_commit();
void emu_copy_wait(int pending);

// mbarriers: set one up, arrive (and announce bytes), wait for the phase of a parity.
void emu_mbar_init(void* barrier, int arrivals);
void emu_mbar_arrive(void* barrier, int bytes);
void emu_mbar_wait(void* barrier, int parity);
void emu_fence_mbar_init();
// Stores of this thread before, what runs beside the threads after.
void emu_fence_async();

// Boxes through tensor maps, with the first element's coordinates.
void emu_tma_load(void* target, const void* map, void* barrier, const int* at, int rank);
void emu_tma_store(const void* map, const void* source, const int* at, int rank);
void emu_bulk_commit();
void emu_bulk_wait(int pending);

// Products of a warpgroup: d = (accumulate ? d : 0) + a * b, 64 x columns x 16, of which the thread has columns / 2
// elements. `a` is 8 elements of this thread, or null for the descriptor `a_at`.
void emu_wgmma(float* d, int columns, unsigned long long a_at, const void* a, unsigned long long b_at, bool accumulate,
               int a_transposed, int b_transposed, int format);
// A sum of a warp's product and `terms` products, as many as a tensor core of Ampere adds at once.
float emu_add_products(float sum, const float* a, const float* b, int terms);
void emu_wgmma_fence();
void emu_wgmma_commit();
void emu_wgmma_wait(int pending);
// A warp's threads have `n` registers from here on: they give up the others, or take `more` that others have given up.
void emu_set_registers(int n, bool more);
unsigned long long emu_shared_address(const void* p);

// Checks that the compiler's instrumentation does not make.
void emu_vector_access(const void* address, unsigned size);
// One access that no other thread can interrupt, and that never races with another such access.
void emu_atomic_access(void* address, unsigned size);
[[noreturn]] void emu_trap(int line, const char* message);
[[noreturn]] void emu_assert(const char* message, long long value);
}
