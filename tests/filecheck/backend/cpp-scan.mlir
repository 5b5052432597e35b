// RUN: dl-opt %s -t cpp | filecheck %s

// A row is scanned vector by vector, in the loop that loads and stores it.
// CHECK: static void k0(
// CHECK: Scan<float, 1> s;
// CHECK: for (int i = 0; i < 1024; i += lanes) {
// CHECK: const auto a = load(
// CHECK: const auto s1 = s.next_vector(a, i, (float)0.0f, [](auto a, auto b) { return a + b; });
// CHECK: store(
kernel.func @k(%x: memref<1024xf32>, %y: memref<1024xf32>) grid [1] warps 1 lanes 1 {
  %i = payload.constant 0 : index
  %z = payload.constant 0.0 : vector<1xf32>
  %a = kernel.load %x[%i] regs [[1], [2], [4], [8], [16], [32], [64], [128], [256], [512]] : memref<1024xf32> -> vector<1024xf32>
  %s, %c = kernel.scan_registers add %a, %z over [0, 1, 2, 3, 4, 5, 6, 7, 8, 9] : vector<1024xf32>, vector<1xf32>
  kernel.store %s, %y[%i] regs [[1], [2], [4], [8], [16], [32], [64], [128], [256], [512]] : memref<1024xf32>, vector<1024xf32>
}
