// Functions for standalone programs, which cuda_runtime.h calls. Part of runtime.cpp.
#pragma once

void* emu_host_allocate(u64 size) {
  const int id = emu_buffer_new(size, 1, 0);
  return id < 0 ? nullptr : emu_buffer_data(id);
}
void emu_host_initialised(void* memory) {
  for (auto& buffer : all_buffers)
    if (buffer->near(address_of(memory))) buffer->initialised = true;
}
int emu_host_launch(void (*call)(void**), const unsigned* grid, const unsigned* extent, u64 shared, void** arguments,
                    unsigned cluster, unsigned registers) {
  set_launch(call, arguments, grid, extent, shared, cluster, registers);
  const std::vector<const char*> names(all_buffers.size(), "a buffer, in bytes");
  for (auto& buffer : all_buffers) launch.buffers.push_back({buffer.get(), 0, buffer->size});
  launch.names = names.data();
  launch.limit = ~u64(0);
  const bool stopped = run_launch(0) != 0;
  for (const Report& r : reports)
    std::fprintf(stderr, "%s: %s [block %u thread %u]\n", r.kind.c_str(), r.text.c_str(), r.block, r.thread);
  return stopped || !reports.empty();
}
