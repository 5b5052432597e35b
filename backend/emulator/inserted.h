// The calls that the compiler inserts for -fsanitize=thread and -fsanitize=bounds. Part of runtime.cpp.
#pragma once

#define FROM __builtin_return_address(0)
#define ACCESSES(N)                                                                              \
  void __tsan_read##N(void* p) { access(p, N, false, true, FROM); }                              \
  void __tsan_write##N(void* p) { access(p, N, true, true, FROM); }                              \
  void __tsan_unaligned_read##N(void* p) { access(p, N, false, false, FROM); }                   \
  void __tsan_unaligned_write##N(void* p) { access(p, N, true, false, FROM); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void __tsan_read_range(void* p, unsigned long n) { access(p, unsigned(n), false, false, FROM); }
void __tsan_write_range(void* p, unsigned long n) { access(p, unsigned(n), true, false, FROM); }
void __ubsan_handle_out_of_bounds(void*, void* index) {
  report("out-of-bounds", "index " + std::to_string(reinterpret_cast<std::intptr_t>(index)) +
                              " is outside of an array in registers", reinterpret_cast<u64>(FROM) - 1);
  abort_launch();
}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
