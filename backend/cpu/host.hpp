// --- host program
typedef void Grid(char* const* a, const long long* n, int blocks, int threads, char* message);
DECLARED
static Grid* const grids[] = {GRIDS};

// The launches of a call, in order, as numbers: the kernel; its blocks; how many cores may share them; how many buffers it
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
    grids[launch[0]](a, p + 1, launch[1], min<int>(threads, launch[2]), message);
    if (clock) *clock++ = omp_get_wtime();
    p += 1 + *p;
  }
}
