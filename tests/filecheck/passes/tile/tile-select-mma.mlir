// RUN: dl-opt %s --split-input-file -p tile-select-mma | filecheck %s

// Both factors were bf16: the product takes them as they are, and sums in f32.

// CHECK-LABEL: tile.kernel @both
// CHECK:         %a = tile.load
// CHECK-NEXT:    %b = tile.load
// CHECK-NEXT:    %d = tile.dot %a, %b, %zero atom "mma" : tensor<16x32xbf16>, tensor<32x16xbf16>, tensor<16x16xf32> -> tensor<16x16xf32>
// CHECK-NOT:     payload.cast
tile.kernel @both(%x: memref<16x32xbf16>, %w: memref<32x16xbf16>, %y: memref<16x16xf32>) blocks () in [] warps 1
    attributes {schedule = #tile.schedule<block = [16, 16], chunk = [32], warps = 1, atom = mma>} {
  %zero = payload.constant 0.0 : tensor<16x16xf32>
  %a = tile.load %x[d0, d1] : memref<16x32xbf16> -> tensor<16x32xbf16>
  %b = tile.load %w[d0, d1] : memref<32x16xbf16> -> tensor<32x16xbf16>
  %af = payload.cast %a : tensor<16x32xbf16> -> tensor<16x32xf32>
  %bf = payload.cast %b : tensor<32x16xbf16> -> tensor<32x16xf32>
  %d = tile.dot %af, %bf, %zero : tensor<16x32xf32>, tensor<32x16xf32>, tensor<16x16xf32> -> tensor<16x16xf32>
  tile.store %d, %y[d0, d1] : tensor<16x16xf32>, memref<16x16xf32>
}

// -----

// A factor that is computed in f32 stays so, and with it the product.

// CHECK-LABEL: tile.kernel @computed
// CHECK:         %d = tile.dot %e, %bf, %zero : tensor<16x32xf32>, tensor<32x16xf32>, tensor<16x16xf32>
tile.kernel @computed(%x: memref<16x32xf32>, %w: memref<32x16xf16>, %y: memref<16x16xf32>) blocks () in [] warps 1
    attributes {schedule = #tile.schedule<block = [16, 16], chunk = [32], warps = 1, atom = mma>} {
  %zero = payload.constant 0.0 : tensor<16x16xf32>
  %a = tile.load %x[d0, d1] : memref<16x32xf32> -> tensor<16x32xf32>
  %b = tile.load %w[d0, d1] : memref<32x16xf16> -> tensor<32x16xf16>
  %e = math.exp %a : tensor<16x32xf32>
  %bf = payload.cast %b : tensor<32x16xf16> -> tensor<32x16xf32>
  %d = tile.dot %e, %bf, %zero : tensor<16x32xf32>, tensor<32x16xf32>, tensor<16x16xf32> -> tensor<16x16xf32>
  tile.store %d, %y[d0, d1] : tensor<16x16xf32>, memref<16x16xf32>
}

// -----

// With the permission it is rounded.

// CHECK-LABEL: tile.kernel @permitted
// CHECK:         %[[E:.*]] = math.exp
// CHECK-NEXT:    %[[R:.*]] = payload.cast %[[E]] : tensor<16x32xf32> -> tensor<16x32xf16>
// CHECK-NEXT:    %d = tile.dot %[[R]], %b, %zero atom "mma" : tensor<16x32xf16>, tensor<32x16xf16>, tensor<16x16xf32>
tile.kernel @permitted(%x: memref<16x32xf32>, %w: memref<32x16xf16>, %y: memref<16x16xf32>) blocks () in [] warps 1
    attributes {schedule = #tile.schedule<block = [16, 16], chunk = [32], warps = 1, atom = mma, f32_matmul_precision = input_dtype>} {
  %zero = payload.constant 0.0 : tensor<16x16xf32>
  %a = tile.load %x[d0, d1] : memref<16x32xf32> -> tensor<16x32xf32>
  %b = tile.load %w[d0, d1] : memref<32x16xf16> -> tensor<32x16xf16>
  %e = math.exp %a : tensor<16x32xf32>
  %bf = payload.cast %b : tensor<32x16xf16> -> tensor<32x16xf32>
  %d = tile.dot %e, %bf, %zero : tensor<16x32xf32>, tensor<32x16xf32>, tensor<16x16xf32> -> tensor<16x16xf32>
  tile.store %d, %y[d0, d1] : tensor<16x16xf32>, memref<16x16xf32>
}

// -----

// Two products into one accumulator: if one cannot be, the other is left alone too.

// CHECK-LABEL: tile.kernel @shared
// CHECK:         tile.dot {{.*}} : tensor<16x32xf32>, tensor<32x16xf32>
// CHECK:         tile.dot {{.*}} : tensor<16x32xf32>, tensor<32x16xf32>
tile.kernel @shared(%x: memref<16x32xbf16>, %w: memref<32x16xbf16>, %y: memref<16x16xf32>) blocks () in [] warps 1
    attributes {schedule = #tile.schedule<block = [16, 16], chunk = [32], warps = 1, atom = mma>} {
  %zero = payload.constant 0.0 : tensor<16x16xf32>
  %a = tile.load %x[d0, d1] : memref<16x32xbf16> -> tensor<16x32xbf16>
  %b = tile.load %w[d0, d1] : memref<32x16xbf16> -> tensor<32x16xbf16>
  %af = payload.cast %a : tensor<16x32xbf16> -> tensor<16x32xf32>
  %bf = payload.cast %b : tensor<32x16xbf16> -> tensor<32x16xf32>
  %e = math.exp %af : tensor<16x32xf32>
  %d = tile.dot %af, %bf, %zero : tensor<16x32xf32>, tensor<32x16xf32>, tensor<16x16xf32> -> tensor<16x16xf32>
  %f = tile.dot %e, %bf, %d : tensor<16x32xf32>, tensor<32x16xf32>, tensor<16x16xf32> -> tensor<16x16xf32>
  tile.store %f, %y[d0, d1] : tensor<16x16xf32>, memref<16x16xf32>
}

// -----

// Or split into three parts, of which the smallest is multiplied first.

// CHECK-LABEL: tile.kernel @parts
// CHECK:         %[[P0:.*]] = payload.cast %e : tensor<16x32xf32> -> tensor<16x32xbf16>
// CHECK-NEXT:    %[[W0:.*]] = payload.cast %[[P0]] : tensor<16x32xbf16> -> tensor<16x32xf32>
// CHECK-NEXT:    %[[R:.*]] = arith.subf %e, %[[W0]] : tensor<16x32xf32>
// CHECK:         %[[K:.*]] = payload.select %{{.*}}, %[[R]], %{{.*}} : tensor<16x32xf32>
// CHECK-NEXT:    %[[P1:.*]] = payload.cast %[[K]] : tensor<16x32xf32> -> tensor<16x32xbf16>
// CHECK:         %[[P2:.*]] = payload.cast %{{.*}} : tensor<16x32xf32> -> tensor<16x32xbf16>
// CHECK-NEXT:    %[[D2:.*]] = tile.dot %[[P2]], %b, %zero atom "mma"
// CHECK-NEXT:    %[[D1:.*]] = tile.dot %[[P1]], %b, %[[D2]] atom "mma"
// CHECK-NEXT:    %[[D0:.*]] = tile.dot %[[P0]], %b, %[[D1]] atom "mma"
// CHECK-NEXT:    tile.store %[[D0]]
tile.kernel @parts(%x: memref<16x32xf32>, %w: memref<32x16xbf16>, %y: memref<16x16xf32>) blocks () in [] warps 1
    attributes {schedule = #tile.schedule<block = [16, 16], chunk = [32], warps = 1, atom = mma, f32_matmul_precision = bf16x3>} {
  %zero = payload.constant 0.0 : tensor<16x16xf32>
  %a = tile.load %x[d0, d1] : memref<16x32xf32> -> tensor<16x32xf32>
  %b = tile.load %w[d0, d1] : memref<32x16xbf16> -> tensor<32x16xbf16>
  %e = math.exp %a : tensor<16x32xf32>
  %bf = payload.cast %b : tensor<32x16xbf16> -> tensor<32x16xf32>
  %d = tile.dot %e, %bf, %zero : tensor<16x32xf32>, tensor<32x16xf32>, tensor<16x16xf32> -> tensor<16x16xf32>
  tile.store %d, %y[d0, d1] : tensor<16x16xf32>, memref<16x16xf32>
}

// -----

// Both factors in f32: six products of parts, those of the smallest first; the three that are left out are below the
// rounding of f32.

// CHECK-LABEL: tile.kernel @both_in_parts
// CHECK:         %[[A0:.*]] = payload.cast %a : tensor<16x32xf32> -> tensor<16x32xbf16>
// CHECK:         %[[A1:.*]] = payload.cast %{{.*}} : tensor<16x32xf32> -> tensor<16x32xbf16>
// CHECK:         %[[A2:.*]] = payload.cast %{{.*}} : tensor<16x32xf32> -> tensor<16x32xbf16>
// CHECK:         %[[B0:.*]] = payload.cast %b : tensor<32x16xf32> -> tensor<32x16xbf16>
// CHECK:         %[[B1:.*]] = payload.cast %{{.*}} : tensor<32x16xf32> -> tensor<32x16xbf16>
// CHECK:         %[[B2:.*]] = payload.cast %{{.*}} : tensor<32x16xf32> -> tensor<32x16xbf16>
// CHECK-NEXT:    %[[D0:.*]] = tile.dot %[[A0]], %[[B2]], %zero atom "mma"
// CHECK-NEXT:    %[[D1:.*]] = tile.dot %[[A1]], %[[B1]], %[[D0]] atom "mma"
// CHECK-NEXT:    %[[D2:.*]] = tile.dot %[[A2]], %[[B0]], %[[D1]] atom "mma"
// CHECK-NEXT:    %[[D3:.*]] = tile.dot %[[A0]], %[[B1]], %[[D2]] atom "mma"
// CHECK-NEXT:    %[[D4:.*]] = tile.dot %[[A1]], %[[B0]], %[[D3]] atom "mma"
// CHECK-NEXT:    %[[D5:.*]] = tile.dot %[[A0]], %[[B0]], %[[D4]] atom "mma"
// CHECK-NEXT:    tile.store %[[D5]]
tile.kernel @both_in_parts(%x: memref<16x32xf32>, %w: memref<32x16xf32>, %y: memref<16x16xf32>) blocks () in [] warps 1
    attributes {schedule = #tile.schedule<block = [16, 16], chunk = [32], warps = 1, atom = mma, f32_matmul_precision = bf16x3>} {
  %zero = payload.constant 0.0 : tensor<16x16xf32>
  %a = tile.load %x[d0, d1] : memref<16x32xf32> -> tensor<16x32xf32>
  %b = tile.load %w[d0, d1] : memref<32x16xf32> -> tensor<32x16xf32>
  %d = tile.dot %a, %b, %zero : tensor<16x32xf32>, tensor<32x16xf32>, tensor<16x16xf32> -> tensor<16x16xf32>
  tile.store %d, %y[d0, d1] : tensor<16x16xf32>, memref<16x16xf32>
}

// -----

// Factors in f32, multiplied as tf32: a warp rounds what it reads.

// CHECK-LABEL: tile.kernel @tf32
// CHECK:         %d = tile.dot %a, %b, %zero atom "mma" : tensor<64x32xf32>, tensor<32x64xf32>, tensor<64x64xf32>
tile.kernel @tf32(%x: memref<64x32xf32>, %w: memref<32x64xf32>, %y: memref<64x64xf32>) blocks () in [] warps 4
    attributes {schedule = #tile.schedule<block = [64, 64], chunk = [32], warps = 4, atom = mma, f32_matmul_precision = tf32>} {
  %zero = payload.constant 0.0 : tensor<64x64xf32>
  %a = tile.load %x[d0, d1] : memref<64x32xf32> -> tensor<64x32xf32>
  %b = tile.load %w[d0, d1] : memref<32x64xf32> -> tensor<32x64xf32>
  %d = tile.dot %a, %b, %zero : tensor<64x32xf32>, tensor<32x64xf32>, tensor<64x64xf32> -> tensor<64x64xf32>
  tile.store %d, %y[d0, d1] : tensor<64x64xf32>, memref<64x64xf32>
}

// -----

// A warpgroup reads shared memory and would cut them, so they are rounded before.

// CHECK-LABEL: tile.kernel @rounded
// CHECK:         %[[A:.*]] = payload.round_tf32 %a : tensor<64x32xf32>
// CHECK-NEXT:    %[[B:.*]] = payload.round_tf32 %b : tensor<32x64xf32>
// CHECK-NEXT:    %d = tile.dot %[[A]], %[[B]], %zero atom "wgmma" : tensor<64x32xf32>
tile.kernel @rounded(%x: memref<64x32xf32>, %w: memref<32x64xf32>, %y: memref<64x64xf32>) blocks () in [] warps 4
    attributes {schedule = #tile.schedule<block = [64, 64], chunk = [32], warps = 4, atom = wgmma, f32_matmul_precision = tf32>} {
  %zero = payload.constant 0.0 : tensor<64x64xf32>
  %a = tile.load %x[d0, d1] : memref<64x32xf32> -> tensor<64x32xf32>
  %b = tile.load %w[d0, d1] : memref<32x64xf32> -> tensor<32x64xf32>
  %d = tile.dot %a, %b, %zero : tensor<64x32xf32>, tensor<32x64xf32>, tensor<64x64xf32> -> tensor<64x64xf32>
  tile.store %d, %y[d0, d1] : tensor<64x64xf32>, memref<64x64xf32>
}

// -----

// Unless a copy brings them there past the registers.

// CHECK-LABEL: tile.kernel @cut
// CHECK-NOT:     payload.round_tf32
// CHECK:         %d = tile.dot %a, %b, %zero atom "wgmma" : tensor<64x32xf32>
tile.kernel @cut(%x: memref<64x32xf32>, %w: memref<32x64xf32>, %y: memref<64x64xf32>) blocks () in [] warps 4
    attributes {schedule = #tile.schedule<block = [64, 64], chunk = [32], warps = 4, atom = wgmma, copy = tma, stages = 2, f32_matmul_precision = tf32>} {
  %zero = payload.constant 0.0 : tensor<64x64xf32>
  %a = tile.load %x[d0, d1] : memref<64x32xf32> -> tensor<64x32xf32>
  %b = tile.load %w[d0, d1] : memref<32x64xf32> -> tensor<32x64xf32>
  %d = tile.dot %a, %b, %zero : tensor<64x32xf32>, tensor<32x64xf32>, tensor<64x64xf32> -> tensor<64x64xf32>
  tile.store %d, %y[d0, d1] : tensor<64x64xf32>, memref<64x64xf32>
}
