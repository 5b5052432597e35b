// RUN: dl-opt %s --split-input-file -p tile-assign-layouts,tile-stage-dot-operands | filecheck %s

// The left operand comes with consecutive k in a thread and is read along m: a swizzle keeps both free of conflicts.
// It does not change in the loop, and is staged once.

// CHECK-DAG:   #swz = #tile.shared<offset = {{\[\[}}1, 0], [2, 0], [4, 0], [8, 0], [16, 0], [0, 1], [0, 2], [16, 4], [8, 8]]>
// CHECK-DAG:   #shared = #tile.shared<offset = {{\[\[}}0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [1, 0], [2, 0], [4, 0], [8, 0]]>
// CHECK:       tile.kernel @dot
// CHECK:         %a = tile.load
// CHECK-NEXT:    %a_shared = tile.stage %a : tensor<32x16xf32, #layout> -> tensor<32x16xf32, #swz>
// CHECK-NEXT:    %s = scf.for
// CHECK-NEXT:      %b = tile.load
// CHECK-NEXT:      %b_shared = tile.stage %b : tensor<16x32xf32, #layout1> -> tensor<16x32xf32, #shared>
// CHECK-NEXT:      %c = tile.dot %a_shared, %b_shared, %acc : tensor<32x16xf32, #swz>, tensor<16x32xf32, #shared>
tile.kernel @dot(%x: memref<32x16xf32>, %w: memref<64x32xf32>, %y: memref<32x32xf32>) blocks () in [] warps 1
    attributes {schedule = #tile.schedule<block = [32, 32], chunk = [16], thread = [4, 8], warps = 1>} {
  %zero = payload.constant 0.0 : tensor<32x32xf32>
  %c0 = payload.constant 0 : index
  %c1 = payload.constant 1 : index
  %c4 = payload.constant 4 : index
  %a = tile.load %x[d0, d1] : memref<32x16xf32> -> tensor<32x16xf32>
  %s = scf.for %k = %c0 to %c4 step %c1 iter_args(%acc = %zero) -> (tensor<32x32xf32>) {
    %b = tile.load %w[d0 + %k * 16, d1] : memref<64x32xf32> -> tensor<16x32xf32>
    %c = tile.dot %a, %b, %acc : tensor<32x16xf32>, tensor<16x32xf32>, tensor<32x32xf32> -> tensor<32x32xf32>
    scf.yield %c : tensor<32x32xf32>
  }
  tile.store %s, %y[d0, d1] : tensor<32x32xf32>, memref<32x32xf32>
}

// -----

// For tensor cores rows of sixteen bytes stay whole: swizzles move only them.

// CHECK-DAG:   #swz = #tile.shared<offset = {{\[\[}}0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [1, 0], [2, 16], [4, 8], [8, 0], [16, 0]]>
// CHECK-DAG:   #swz1 = #tile.shared<offset = {{\[\[}}1, 0], [2, 0], [4, 0], [8, 0], [16, 0], [0, 1], [0, 2], [0, 4], [16, 8], [8, 16]]>
// CHECK:       tile.kernel @tensor_cores
// CHECK:         tile.dot %a_shared, %b_shared, %zero atom "mma" : tensor<32x32xbf16, #swz>, tensor<32x32xbf16, #swz1>
tile.kernel @tensor_cores(%x: memref<32x32xbf16>, %w: memref<32x32xbf16>, %y: memref<32x32xbf16>) blocks () in [] warps 1 {
  %zero = payload.constant 0.0 : tensor<32x32xf32>
  %a = tile.load %x[d0, d1] : memref<32x32xbf16> -> tensor<32x32xbf16>
  %b = tile.load %w[d1, d0] : memref<32x32xbf16> -> tensor<32x32xbf16>
  %c = tile.dot %a, %b, %zero atom "mma" : tensor<32x32xbf16>, tensor<32x32xbf16>, tensor<32x32xf32> -> tensor<32x32xf32>
  %d = payload.cast %c : tensor<32x32xf32> -> tensor<32x32xbf16>
  tile.store %d, %y[d0, d1] : tensor<32x32xbf16>, memref<32x32xbf16>
}

// -----

// A result of one product is the left operand of the next, in the threads that multiply it: it stays in registers.

// CHECK:       tile.kernel @chained
// CHECK:         %p = payload.cast %c
// CHECK-NEXT:    %d = tile.dot %p, %b_shared, %zero atom "mma" : tensor<16x16xbf16, #{{.*}}>, tensor<16x16xbf16, #{{s.*}}{{.*}}>
tile.kernel @chained(%x: memref<16x16xbf16>, %y: memref<16x16xf32>) blocks () in [] warps 1 {
  %zero = payload.constant 0.0 : tensor<16x16xf32>
  %a = tile.load %x[d0, d1] : memref<16x16xbf16> -> tensor<16x16xbf16>
  %b = tile.load %x[d1, d0] : memref<16x16xbf16> -> tensor<16x16xbf16>
  %c = tile.dot %a, %b, %zero atom "mma" : tensor<16x16xbf16>, tensor<16x16xbf16>, tensor<16x16xf32> -> tensor<16x16xf32>
  %p = payload.cast %c : tensor<16x16xf32> -> tensor<16x16xbf16>
  %d = tile.dot %p, %b, %zero atom "mma" : tensor<16x16xbf16>, tensor<16x16xbf16>, tensor<16x16xf32> -> tensor<16x16xf32>
  tile.store %d, %y[d0, d1] : tensor<16x16xf32>, memref<16x16xf32>
}

// -----

// As tf32 the lanes of each warp exchange it first.

// CHECK:       tile.kernel @chained_tf32
// CHECK:         %[[P:.*]] = tile.convert_layout %c via "shuffles" : tensor<16x16xf32, #[[ACC:.*]]> -> tensor<16x16xf32, #[[PART:.*]]>
// CHECK-NEXT:    %d = tile.dot %[[P]], %b_shared, %zero atom "mma" : tensor<16x16xf32, #[[PART]]>, tensor<16x16xf32, #{{s.*}}{{.*}}>
tile.kernel @chained_tf32(%x: memref<16x16xf32>, %y: memref<16x16xf32>) blocks () in [] warps 1 {
  %zero = payload.constant 0.0 : tensor<16x16xf32>
  %a = tile.load %x[d0, d1] : memref<16x16xf32> -> tensor<16x16xf32>
  %b = tile.load %x[d1, d0] : memref<16x16xf32> -> tensor<16x16xf32>
  %c = tile.dot %a, %b, %zero atom "mma" : tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32> -> tensor<16x16xf32>
  %d = tile.dot %c, %b, %zero atom "mma" : tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32> -> tensor<16x16xf32>
  tile.store %d, %y[d0, d1] : tensor<16x16xf32>, memref<16x16xf32>
}
