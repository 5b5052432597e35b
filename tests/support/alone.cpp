// Runs a program of the CPU target without Python, so that sanitizers can check it. It reads from the standard input,
// with all numbers as 64-bit integers:
//   number of buffers, size of each in bytes, contents of all buffers one after the other,
//   length of the encoded launches (see host.hpp), the launches, 1, number of threads.
// It writes the contents of all buffers to the standard output. Every buffer is allocated separately, so that a
// sanitizer detects accesses past its end.
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

extern "C" void run(const long long* launches, const long long* end, char* const* memory, int threads, char* message,
                    double* clock);

static void read(void* to, size_t bytes) {
  if (fread(to, 1, bytes, stdin) != bytes) abort();
}

// Reads a length and then so many numbers.
static std::vector<long long> numbers() {
  long long count;
  read(&count, sizeof count);
  std::vector<long long> values(count);
  read(values.data(), count * sizeof count);
  return values;
}

#ifdef THREADS
// Replaces libgomp, the runtime of `#pragma omp`, by std::thread, which the thread sanitizer understands. Loop
// iterations go to the threads round robin, so adjacent ones are on different threads, and only the start and the end
// of a loop synchronize threads. The sanitizer then sees every race between blocks.
static thread_local long number, count, next, last;

extern "C" void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned) {
  std::vector<std::thread> team;
  for (unsigned t = 0; t < threads; ++t) team.emplace_back([=] { number = t, count = threads, body(data); });
  for (auto& thread : team) thread.join();
}
extern "C" bool GOMP_loop_nonmonotonic_dynamic_next(long* first, long* end) {
  *first = next, *end = next + 1, next += count;
  return *first < last;
}
extern "C" bool GOMP_loop_nonmonotonic_dynamic_start(long start, long stop, long, long, long* first, long* end) {
  next = start + number, last = stop;
  return GOMP_loop_nonmonotonic_dynamic_next(first, end);
}
extern "C" void GOMP_loop_end_nowait() {}
#endif

extern "C" double omp_get_wtime() { return 0; }  // not called, because the clock below is null; must link

int main() {
  const auto sizes = numbers();
  std::vector<char*> memory;
  for (const long long size : sizes) memory.push_back((char*)malloc(size));
  for (size_t i = 0; i < sizes.size(); ++i) read(memory[i], sizes[i]);
  const auto launches = numbers();
  run(launches.data(), launches.data() + launches.size(), memory.data(), numbers()[0], nullptr, nullptr);
  for (size_t i = 0; i < sizes.size(); ++i) {
    fwrite(memory[i], 1, sizes[i], stdout);
    free(memory[i]);
  }
}
