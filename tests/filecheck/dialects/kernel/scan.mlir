// RUN: %roundtrip

// CHECK-LABEL: kernel.func @k
kernel.func @k(%x: memref<64xf32>) grid [1] warps 1 {
  %a = payload.constant 1.0 : vector<8xf32>
  %z = payload.constant 0.0 : vector<2xf32>
  // CHECK: %s, %c = kernel.scan_registers add %a, %z over [0, 2] : vector<8xf32>, vector<2xf32>
  %s, %c = kernel.scan_registers add %a, %z over [0, 2] : vector<8xf32>, vector<2xf32>
}
