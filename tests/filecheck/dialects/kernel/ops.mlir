// RUN: %roundtrip

// CHECK-LABEL: kernel.func @all(%x: memref<100x64xf32>, %w: memref<64xbf16>, %y: memref<100x64xf32>) grid [7] warps 4 shared 512 attributes {note = "kept"} {
kernel.func @all(%x: memref<100x64xf32>, %w: memref<64xbf16>, %y: memref<100x64xf32>) grid [7] warps 4 shared 512 attributes {note = "kept"} {
  // CHECK-NEXT: %s = kernel.shared at 128 : memref<64xf32, "shared">
  %s = kernel.shared at 128 : memref<64xf32, "shared">
  // CHECK-NEXT: %apart = kernel.shared at 512 warp_group_private 4 : memref<64xf32, "shared">
  %apart = kernel.shared at 512 warp_group_private 4 : memref<64xf32, "shared">
  // CHECK-NEXT: %u = kernel.shared : memref<8xi32, "shared">
  %u = kernel.shared : memref<8xi32, "shared">
  // CHECK-NEXT: %block = kernel.id block
  // CHECK-NEXT: %thread = kernel.id thread
  // CHECK-NEXT: %lane = kernel.id lane
  // CHECK-NEXT: %warp = kernel.id warp
  %block = kernel.id block
  %thread = kernel.id thread
  %lane = kernel.id lane
  %warp = kernel.id warp
  %zero = payload.constant 0.0 : f32
  %t = payload.constant true
    : i1
  // CHECK: %v = kernel.load %x[%block, %lane] regs {{\[\[}}0, 1], [8, 0]] vec 2 where 0 <= %block < 100 steps {{\[\[}}0], [8]] else %zero : memref<100x64xf32> -> vector<4xf32>
  %v = kernel.load %x[%block, %lane] regs [[0, 1], [8, 0]] vec 2 where 0 <= %block < 100 steps [[0], [8]] else %zero : memref<100x64xf32> -> vector<4xf32>
  // CHECK-NEXT: %b = kernel.load %w[%lane] : memref<64xbf16> -> vector<1xbf16>
  %b = kernel.load %w[%lane] : memref<64xbf16> -> vector<1xbf16>
  // CHECK-NEXT: %k = kernel.indices %lane steps [2, 16] : vector<4xindex>
  %k = kernel.indices %lane steps [2, 16] : vector<4xindex>
  // CHECK-NEXT: %g = kernel.load %x[%block, %k] regs {{\[\[}}0, 0], [0, 0]] : memref<100x64xf32> -> vector<4xf32>
  %g = kernel.load %x[%block, %k] regs [[0, 0], [0, 0]] : memref<100x64xf32> -> vector<4xf32>
  // CHECK-NEXT: kernel.store %v, %s[%lane] xor regs {{\[\[}}1], [32]] vec 2 if %t : memref<64xf32, "shared">, vector<4xf32>
  kernel.store %v, %s[%lane] xor regs [[1], [32]] vec 2 if %t : memref<64xf32, "shared">, vector<4xf32>
  // CHECK-NEXT: kernel.barrier
  kernel.barrier
  // CHECK-NEXT: %h = kernel.shuffle_xor %v by 16 : vector<4xf32>
  %h = kernel.shuffle_xor %v by 16 : vector<4xf32>
  // CHECK-NEXT: %h1 = kernel.shuffle %v from %lane lane_xor [0, 2] : vector<4xf32>
  %h1 = kernel.shuffle %v from %lane lane_xor [0, 2] : vector<4xf32>
  // CHECK-NEXT: %h2 = kernel.shuffle %v lane_xor [1, 0] : vector<4xf32>
  %h2 = kernel.shuffle %v lane_xor [1, 0] : vector<4xf32>
  // CHECK-NEXT: %h3 = kernel.permute_registers %v by %lane reg_xor [1, 2, 0, 0, 0] : vector<4xf32>
  %h3 = kernel.permute_registers %v by %lane reg_xor [1, 2, 0, 0, 0] : vector<4xf32>
  // CHECK-NEXT: %f = kernel.reduce_registers max %h over [0] : vector<4xf32> -> vector<2xf32>
  %f = kernel.reduce_registers max %h over [0] : vector<4xf32> -> vector<2xf32>
  // CHECK-NEXT: %p = kernel.shuffle_registers %f from [0, 0, 1, 1] : vector<2xf32> -> vector<4xf32>
  %p = kernel.shuffle_registers %f from [0, 0, 1, 1] : vector<2xf32> -> vector<4xf32>
  // CHECK-NEXT: %e = kernel.extract %p[3] : vector<4xf32>
  %e = kernel.extract %p[3] : vector<4xf32>
  // CHECK-NEXT: %n = kernel.splat %e : f32 -> vector<4xf32>
  %n = kernel.splat %e : f32 -> vector<4xf32>
  // CHECK-NEXT: %c = kernel.outer_fma %f, %f, %n rows [1] cols [0] : vector<2xf32>, vector<2xf32>, vector<4xf32>
  %c = kernel.outer_fma %f, %f, %n rows [1] cols [0] : vector<2xf32>, vector<2xf32>, vector<4xf32>
  // CHECK-NEXT: %d = kernel.panel_fma %f, %f, %c depth 1 : vector<2xf32>, vector<2xf32>, vector<4xf32>
  %d = kernel.panel_fma %f, %f, %c depth 1 : vector<2xf32>, vector<2xf32>, vector<4xf32>
  // CHECK-NEXT: kernel.store %c, %y[%block, %lane] regs {{\[\[}}0, 1], [0, 2]] : memref<100x64xf32>, vector<4xf32>
  kernel.store %c, %y[%block, %lane] regs [[0, 1], [0, 2]] : memref<100x64xf32>, vector<4xf32>
}

// CHECK-LABEL: func.func @main
func.func @main(%x: memref<100x64xf32>, %w: memref<64xbf16>, %y: memref<100x64xf32>) {
  // CHECK-NEXT: %t = kernel.alloc : memref<100x64xf32>
  %t = kernel.alloc : memref<100x64xf32>
  // CHECK-NEXT: kernel.launch @all(%x, %w, %t) : memref<100x64xf32>, memref<64xbf16>, memref<100x64xf32>
  kernel.launch @all(%x, %w, %t) : memref<100x64xf32>, memref<64xbf16>, memref<100x64xf32>
  func.return
}
