// RUN: %roundtrip

// CHECK-LABEL: kernel.func @k
// CHECK:         %a = kernel.ldmatrix count 4 %s[%lane] xor steps [512] : memref<4096xbf16, "shared"> -> vector<16xbf16>
// CHECK-NEXT:    %b = kernel.ldmatrix count 2 trans %s[%lane] steps [64, 128] : memref<4096xbf16, "shared"> -> vector<16xbf16>
// CHECK-NEXT:    %b1 = kernel.ldmatrix count 1 %s[%lane] : memref<4096xbf16, "shared"> -> vector<2xbf16>
// CHECK-NEXT:    kernel.stmatrix count 4 %a, %s[%lane] xor steps [512] : vector<16xbf16>, memref<4096xbf16, "shared">
// CHECK-NEXT:    kernel.stmatrix count 2 trans %b, %s[%lane] steps [64, 128] : vector<16xbf16>, memref<4096xbf16, "shared">
// CHECK-NEXT:    %d = kernel.mma %a, %b, %c rows [1, 3] cols [2, 4] : vector<16xbf16>, vector<16xbf16>, vector<32xf32>
kernel.func @k() grid [1] warps 1 {
  %lane = kernel.id lane
  %s = kernel.shared : memref<4096xbf16, "shared">
  %c = payload.constant 0.0 : vector<32xf32>
  %a = kernel.ldmatrix count 4 %s[%lane] xor steps [512] : memref<4096xbf16, "shared"> -> vector<16xbf16>
  %b = kernel.ldmatrix count 2 trans %s[%lane] steps [64, 128] : memref<4096xbf16, "shared"> -> vector<16xbf16>
  %b1 = kernel.ldmatrix count 1 %s[%lane] : memref<4096xbf16, "shared"> -> vector<2xbf16>
  kernel.stmatrix count 4 %a, %s[%lane] xor steps [512] : vector<16xbf16>, memref<4096xbf16, "shared">
  kernel.stmatrix count 2 trans %b, %s[%lane] steps [64, 128] : vector<16xbf16>, memref<4096xbf16, "shared">
  %d = kernel.mma %a, %b, %c rows [1, 3] cols [2, 4] : vector<16xbf16>, vector<16xbf16>, vector<32xf32>
}

// Of f32 a row is four elements, and a block of a product half as deep.

// CHECK-LABEL: kernel.func @f32
// CHECK:         %a = kernel.ldmatrix count 4 %s[%lane] xor steps [32] : memref<4096xf32, "shared"> -> vector<8xf32>
// CHECK-NEXT:    kernel.stmatrix count 2 %a, %s[%lane] steps [64, 128] : vector<8xf32>, memref<4096xf32, "shared">
// CHECK-NEXT:    %r = payload.round_tf32 %a : vector<8xf32>
// CHECK-NEXT:    %d = kernel.mma %r, %r, %c rows [1, 3] cols [2, 4] : vector<8xf32>, vector<8xf32>, vector<32xf32>
kernel.func @f32() grid [1] warps 1 {
  %lane = kernel.id lane
  %s = kernel.shared : memref<4096xf32, "shared">
  %c = payload.constant 0.0 : vector<32xf32>
  %a = kernel.ldmatrix count 4 %s[%lane] xor steps [32] : memref<4096xf32, "shared"> -> vector<8xf32>
  kernel.stmatrix count 2 %a, %s[%lane] steps [64, 128] : vector<8xf32>, memref<4096xf32, "shared">
  %r = payload.round_tf32 %a : vector<8xf32>
  %d = kernel.mma %r, %r, %c rows [1, 3] cols [2, 4] : vector<8xf32>, vector<8xf32>, vector<32xf32>
}
