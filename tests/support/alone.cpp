// A program of the CPU target without Python. From the standard input it reads 64-bit numbers: how many buffers there are,
// the bytes of each; the contents of all, one behind the other; how many numbers its launches are, and these; the
// threads. It writes the contents of all buffers to the standard output. Every buffer is memory of its own, so that a
// sanitizer sees an access behind it.
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

extern "C" void run(const long long* launches, const long long* end, char* const* memory, int threads, char* message,
                    double* clock);

static void read(void* to, size_t bytes) {
  if (fread(to, 1, bytes, stdin) != bytes) abort();
}

static std::vector<long long> numbers() {
  long long count;
  read(&count, sizeof count);
  std::vector<long long> found(count);
  read(found.data(), count * sizeof count);
  return found;
}

#ifdef THREADS
// What `#pragma omp` calls, by threads that a sanitizer knows. Shares go to the threads in turn, so that no two of
// neighbouring ones are of one thread, and nothing but begin and end of the loop puts blocks of two in an order.
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

extern "C" double omp_get_wtime() { return 0; }  // no clock is given, but the text has the call

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
