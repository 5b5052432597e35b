// RUN: %diagnostics

// CHECK: error: kernel.ldmatrix: expected a buffer in shared memory, but got memref<512xbf16>
kernel.func @k(%x: memref<512xbf16>) grid [1] warps 1 {
  %i = kernel.id lane
  %a = kernel.ldmatrix count 4 %x[%i] : memref<512xbf16> -> vector<8xbf16>
}

// -----

// CHECK: error: kernel.ldmatrix: expected bf16, f16 or f32 in both memory and registers, but got memref<512xi32, "shared"> and vector<4xi32>
kernel.func @k() grid [1] warps 1 {
  %i = kernel.id lane
  %s = kernel.shared : memref<512xi32, "shared">
  %a = kernel.ldmatrix count 4 %s[%i] : memref<512xi32, "shared"> -> vector<4xi32>
}

// -----

// CHECK: error: kernel.ldmatrix: expected no transposition of f32 matrices, but got trans with vector<4xf32>
kernel.func @k() grid [1] warps 1 {
  %i = kernel.id lane
  %s = kernel.shared : memref<512xf32, "shared">
  %a = kernel.ldmatrix count 4 trans %s[%i] : memref<512xf32, "shared"> -> vector<4xf32>
}

// -----

// CHECK: error: kernel.ldmatrix: expected steps of a multiple of 16 bytes, 4 elements, but got [2]
kernel.func @k() grid [1] warps 1 {
  %i = kernel.id lane
  %s = kernel.shared : memref<512xf32, "shared">
  %a = kernel.ldmatrix count 4 %s[%i] steps [2] : memref<512xf32, "shared"> -> vector<8xf32>
}

// -----

// CHECK: error: kernel.ldmatrix: expected steps of a multiple of 16 bytes, 8 elements, but got [4]
kernel.func @k() grid [1] warps 1 {
  %i = kernel.id lane
  %s = kernel.shared : memref<512xbf16, "shared">
  %a = kernel.ldmatrix count 4 %s[%i] steps [4] : memref<512xbf16, "shared"> -> vector<16xbf16>
}

// -----

// CHECK: error: kernel.ldmatrix: expected 8 registers for 4 matrices in each of 1 steps, but got vector<16xbf16>
kernel.func @k() grid [1] warps 1 {
  %i = kernel.id lane
  %s = kernel.shared : memref<512xbf16, "shared">
  %a = kernel.ldmatrix count 4 %s[%i] : memref<512xbf16, "shared"> -> vector<16xbf16>
}

// -----

// CHECK: error: kernel.stmatrix: expected a buffer in shared memory, but got memref<512xbf16>
kernel.func @k(%x: memref<512xbf16>) grid [1] warps 1 {
  %i = kernel.id lane
  %v = payload.constant 0.0 : vector<8xbf16>
  kernel.stmatrix count 4 %v, %x[%i] : vector<8xbf16>, memref<512xbf16>
}

// -----

// CHECK: error: kernel.stmatrix: expected bf16, f16 or f32 in both memory and registers, but got memref<512xf16, "shared"> and vector<8xbf16>
kernel.func @k() grid [1] warps 1 {
  %i = kernel.id lane
  %v = payload.constant 0.0 : vector<8xbf16>
  %s = kernel.shared : memref<512xf16, "shared">
  kernel.stmatrix count 4 %v, %s[%i] : vector<8xbf16>, memref<512xf16, "shared">
}

// -----

// CHECK: error: kernel.stmatrix: expected 16 registers for 4 matrices in each of 2 steps, but got vector<8xbf16>
kernel.func @k() grid [1] warps 1 {
  %i = kernel.id lane
  %v = payload.constant 0.0 : vector<8xbf16>
  %s = kernel.shared : memref<512xbf16, "shared">
  kernel.stmatrix count 4 %v, %s[%i] steps [64] : vector<8xbf16>, memref<512xbf16, "shared">
}

// -----

// CHECK: error: kernel.stmatrix: expected steps of a multiple of 16 bytes, 8 elements, but got [4]
kernel.func @k() grid [1] warps 1 {
  %i = kernel.id lane
  %v = payload.constant 0.0 : vector<16xbf16>
  %s = kernel.shared : memref<512xbf16, "shared">
  kernel.stmatrix count 4 %v, %s[%i] steps [4] : vector<16xbf16>, memref<512xbf16, "shared">
}

// -----

// CHECK: error: kernel.mma: expected rows with a bit that selects the upper 8 of the 16 rows of m16n8k16, but got []
kernel.func @k() grid [1] warps 1 {
  %a = payload.constant 0.0 : vector<4xbf16>
  %b = payload.constant 0.0 : vector<8xbf16>
  %c = payload.constant 0.0 : vector<4xf32>
  %d = kernel.mma %a, %b, %c rows [] cols [1] : vector<4xbf16>, vector<8xbf16>, vector<4xf32>
}

// -----

// CHECK: error: kernel.mma: expected 8 and 4 registers for rows [1] and cols [], but got 4 and 4
kernel.func @k() grid [1] warps 1 {
  %a = payload.constant 0.0 : vector<4xbf16>
  %c = payload.constant 0.0 : vector<4xf32>
  %d = kernel.mma %a, %a, %c rows [1] cols [] : vector<4xbf16>, vector<4xbf16>, vector<4xf32>
}

// -----

// CHECK: error: kernel.mma: expected both operands of one type of bf16, f16, f32, f64, but got bf16 and f16
kernel.func @k() grid [1] warps 1 {
  %a = payload.constant 0.0 : vector<8xbf16>
  %b = payload.constant 0.0 : vector<4xf16>
  %c = payload.constant 0.0 : vector<4xf32>
  %d = kernel.mma %a, %b, %c rows [1] cols [] : vector<8xbf16>, vector<4xf16>, vector<4xf32>
}

// -----

// CHECK: error: kernel.mma: expected an accumulator of f32, but got vector<4xbf16>
kernel.func @k() grid [1] warps 1 {
  %a = payload.constant 0.0 : vector<8xbf16>
  %b = payload.constant 0.0 : vector<4xbf16>
  %d = kernel.mma %a, %b, %b rows [1] cols [] : vector<8xbf16>, vector<4xbf16>, vector<4xbf16>
}

// -----

// CHECK: error: kernel.mma: expected 4 and 2 registers for rows [1] and cols [], but got 8 and 4
kernel.func @k() grid [1] warps 1 {
  %a = payload.constant 0.0 : vector<8xf32>
  %b = payload.constant 0.0 : vector<4xf32>
  %d = kernel.mma %a, %b, %b rows [1] cols [] : vector<8xf32>, vector<4xf32>, vector<4xf32>
}
