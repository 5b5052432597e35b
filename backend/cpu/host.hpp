
// Blocks that a core takes at a time: some eight shares for each, so that one that is busy with something else gets fewer.
static inline int share(int blocks, int threads) { const int n = blocks / (8 * threads); return n > 1 ? n : 1; }
template <class Block> static inline void all_blocks(int blocks, int threads, Block block) {
  if (threads > 1) {
#pragma omp parallel for schedule(dynamic, share(blocks, threads)) num_threads(threads)
    for (int b = 0; b < blocks; ++b) block(b);
  } else {
    for (int b = 0; b < blocks; ++b) block(b);
  }
}

// What a call found that it does not take, in 200 characters of its own; whoever works for the call knows the place.
static thread_local char* failure;
extern "C" int snprintf(char*, unsigned long, const char*, ...);
static void emu_assert(const char* what, long long x) {
#pragma omp critical
  if (!failure[0]) snprintf(failure, 200, "%s: %lld", what, x);
}
//// entry

// --- host program
typedef void Grid(char* const* a, const long long* n, int blocks, int threads, char* message);
DECLARED
static Grid* const grids[] = {GRIDS};

// The launches of a call, in order, as numbers: the kernel; its blocks; whether cores share them; how many buffers it
// has, and where each lies: in which memory and how many bytes behind its begin, or -1 and its address; how many sizes it
// has, and these. Where there is a clock, it is told when the first began, and when each ended.
extern "C" double omp_get_wtime(void);
extern "C" void run(const long long* p, const long long* end, char* const* memory, int threads, char* message,
                    double* clock) {
  if (clock) *clock++ = omp_get_wtime();
  while (p != end && !(message && *message)) {
    const long long *const launch = p, buffers = p[3];
    char* a[BUFFERS];
    p += 4;
    for (int i = 0; i < buffers; ++i, p += 2) a[i] = p[0] < 0 ? (char*)p[1] : memory[p[0]] + p[1];
    grids[launch[0]](a, p + 1, launch[1], launch[2] ? threads : 1, message);
    if (clock) *clock++ = omp_get_wtime();
    p += 1 + *p;
  }
}
