// Handlers that the compiler calls in instrumented code (-fsanitize=thread, bounds, alignment and others). Part of
// runtime.cpp.
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
// The first fields of the compiler's description of a misaligned access.
struct EmuMismatch {
  const char* file;
  unsigned line, column;
  const struct EmuType { unsigned short kind, info; char name[1]; }* type;
  unsigned char log_alignment, access;  // 0 a load, 1 a store, else a reference to an object or to a member of one
};
void __ubsan_handle_type_mismatch_v1(const EmuMismatch* what, void* pointer) {
  const char* does = what->access == 0 ? "reads" : what->access == 1 ? "writes" : "accesses";
  check_alignment(std::string(does) + " memory as " + what->type->name, address_of(pointer),
                  u64(1) << what->log_alignment, reinterpret_cast<u64>(FROM) - 1);
}
void __ubsan_handle_divrem_overflow(void*, void*, void*) {
  report("arithmetic", "divides an integer by zero", reinterpret_cast<u64>(FROM) - 1);
  abort_launch();
}
void __ubsan_handle_shift_out_of_bounds(void*, void*, void* count) {
  report("arithmetic", "shifts by " + std::to_string(reinterpret_cast<std::intptr_t>(count)) + " bits, which its type " +
                           "does not have", reinterpret_cast<u64>(FROM) - 1);
  abort_launch();
}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
