
// --- tensor maps Encodes a TMA tensor map. Dimensions are listed from the fastest to the slowest; strides are in
// bytes. The driver's encode function is looked up through the CUDA runtime, so the program need not link libcuda.
// `type`, `swizzle` and `promotion` are values of the enums in cuda.h.
TensorMap tensor_map(int type, unsigned rank, void* memory, std::vector<unsigned long long> extents,
                     std::vector<unsigned long long> strides, std::vector<unsigned> box, int swizzle, int promotion) {
  typedef int (*Encode)(void*, int, unsigned, void*, const unsigned long long*, const unsigned long long*,
                        const unsigned*, const unsigned*, int, int, int, int);
  void* encode = nullptr;
  cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
  must(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found));
#else
  must(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &encode, cudaEnableDefault, &found));
#endif
  TensorMap map;
  const std::vector<unsigned> steps(rank, 1);
  const int status = found != cudaDriverEntryPointSuccess ? -1 : ((Encode)encode)(
      &map, type, rank, memory, extents.data(), strides.data(), box.data(), steps.data(), 0, swizzle, promotion, 0);
  if (status) {
    std::fprintf(stderr, "the driver makes no tensor map: %d\n", status);
    std::exit(2);
  }
  return map;
}