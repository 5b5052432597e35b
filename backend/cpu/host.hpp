// --- host program
typedef void Grid(char* const* a, const long long* n, int blocks, int threads, char* message);
DECLARED
static Grid* const grids[] = {GRIDS};

// Runs launches in order. They are encoded as numbers from `p` to `end`; each launch is
//   kernel, blocks, maximum number of cores, number of buffers,
//   two numbers per buffer: index into `memory` and offset in bytes, or -1 and the address,
//   number of sizes, sizes.
// If `clock` is not null, it receives the time before the first launch and after each launch.
extern "C" double omp_get_wtime(void);
extern "C" void run(const long long* p, const long long* end, char* const* memory, int threads, char* message,
                    double* clock) {
  if (clock) *clock++ = omp_get_wtime();
  while (p != end && !(message && *message)) {
    const long long *const launch = p, buffers = p[3];
    char* a[BUFFERS];
    p += 4;
    for (int i = 0; i < buffers; ++i, p += 2) a[i] = p[0] < 0 ? (char*)p[1] : memory[p[0]] + p[1];
    grids[launch[0]](a, p + 1, launch[1], min<int>(threads, launch[2]), message);
    if (clock) *clock++ = omp_get_wtime();
    p += 1 + *p;
  }
}
