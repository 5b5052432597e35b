// RUN: dl-opt %s -p tile-cache-rows --split-input-file --remarks --verify-diagnostics | filecheck %s

// What the first loop loads, the second reads from shared memory, in the same places.

// CHECK-LABEL: tile.kernel @rows
// CHECK:         %x_row = tile.row_buffer : !tile.row_buffer<4 of tensor<64xf32>>
// CHECK-NEXT:    %m = scf.for %k = %c0 to %c4 step %c1 iter_args(%old = %low) -> (f32) {
// CHECK-NEXT:      %a = tile.load %x
// CHECK-NEXT:      tile.row_buffer_store %a, %x_row[%k] : tensor<64xf32>, !tile.row_buffer<4 of tensor<64xf32>>
// CHECK:         scf.for %j = %c0 to %c4 step %c1 {
// CHECK:           %b = tile.row_buffer_load %x_row[%j] : !tile.row_buffer<4 of tensor<64xf32>> -> tensor<64xf32>
// CHECK-NEXT:      tile.store %b
tile.kernel @rows(%x: memref<8x250xf32>, %y: memref<8x250xf32>) blocks (%i) in [8] warps 1
    attributes {schedule = #tile.schedule<block = [1, 64], serial = [1], chunk = [64], warps = 1, cache_rows = shared>} {
  %low = payload.constant 0xff800000 : f32
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %m = scf.for %k = %c0 to %c4 step %c1 iter_args(%old = %low) -> (f32) {
    %a = tile.load %x[%i, d0 + %k * 64]
         where 0 <= d0 + %k * 64 < 250 else %low : memref<8x250xf32> -> tensor<64xf32>
    %n = tile.reduce max %a over [0] : tensor<64xf32> -> f32
    %o = arith.maximumf %old, %n : f32
    scf.yield %o : f32
  }
  scf.for %j = %c0 to %c4 step %c1 {
    %other = payload.constant 0xff800000 : f32
    %b = tile.load %x[%i, d0 + %j * 64]
         where 0 <= d0 + %j * 64 < 250 else %other : memref<8x250xf32> -> tensor<64xf32>
    tile.store %b, %y[%i, d0 + %j * 64]
         where 0 <= d0 + %j * 64 < 250 : tensor<64xf32>, memref<8x250xf32>
  }
}

// -----

// A row of two dimensions: the place is the number of the iteration.

// CHECK-LABEL: tile.kernel @nested
// CHECK:         %x_row = tile.row_buffer : !tile.row_buffer<6 of tensor<32xbf16>>
// CHECK:             %a = tile.load %x
// CHECK-NEXT:        %0 = tile.affine %k * 3 + %l : index
// CHECK-NEXT:        tile.row_buffer_store %a, %x_row[%0]
// CHECK:             %1 = tile.affine %p * 3 + %q : index
// CHECK-NEXT:        %b = tile.row_buffer_load %x_row[%1]
tile.kernel @nested(%x: memref<2x96xbf16>, %y: memref<2x96xbf16>) blocks () in [] warps 1
    attributes {schedule = #tile.schedule<block = [1, 32], serial = [0, 1], chunk = [1, 32], warps = 1, cache_rows = shared>} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  scf.for %k = %c0 to %c2 step %c1 {
    scf.for %l = %c0 to %c3 step %c1 {
      %a = tile.load %x[%k, d0 + %l * 32] : memref<2x96xbf16> -> tensor<32xbf16>
      "test.op"(%a) : (tensor<32xbf16>) -> ()
    }
  }
  scf.for %p = %c0 to %c2 step %c1 {
    scf.for %q = %c0 to %c3 step %c1 {
      %b = tile.load %x[%p, d0 + %q * 32] : memref<2x96xbf16> -> tensor<32xbf16>
      "test.op"(%b) : (tensor<32xbf16>) -> ()
    }
  }
}

// -----

// Other chunks, other elements, or bounds that are not numbers: each loop reads for itself.

// CHECK: remark: [tile-cache-rows] tile.kernel: no two loops load the same tiles
tile.kernel @different(%x: memref<256xf32>) blocks (%i) in [4] warps 1
    attributes {schedule = #tile.schedule<block = [64], chunk = [64], warps = 1, cache_rows = shared>} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c4 = arith.constant 4 : index
  scf.for %k = %c0 to %c4 step %c1 {
    %a = tile.load %x[d0 + %k * 64] : memref<256xf32> -> tensor<64xf32>
    "test.op"(%a) : (tensor<64xf32>) -> ()
  }
  scf.for %k = %c0 to %c2 step %c1 {
    %a = tile.load %x[d0 + %k * 64] : memref<256xf32> -> tensor<64xf32>
    "test.op"(%a) : (tensor<64xf32>) -> ()
  }
  scf.for %k = %c0 to %c4 step %c1 {
    %a = tile.load %x[d0 * 4 + %k] : memref<256xf32> -> tensor<64xf32>
    "test.op"(%a) : (tensor<64xf32>) -> ()
  }
  scf.for %k = %c0 to %i step %c1 {
    %a = tile.load %x[d0 + %k * 64] : memref<256xf32> -> tensor<64xf32>
    "test.op"(%a) : (tensor<64xf32>) -> ()
  }
}

// -----

// Nothing is kept in shared memory that the schedule does not ask for.

// CHECK: remark: [tile-cache-rows] tile.load: %x in several chunks is read again by each loop
tile.kernel @memory(%x: memref<256xf32>) blocks () in [] warps 1
    attributes {schedule = #tile.schedule<block = [64], chunk = [64], warps = 1>} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  scf.for %k = %c0 to %c4 step %c1 {
    %a = tile.load %x[d0 + %k * 64] : memref<256xf32> -> tensor<64xf32>
    "test.op"(%a) : (tensor<64xf32>) -> ()
  }
  scf.for %k = %c0 to %c4 step %c1 {
    %a = tile.load %x[d0 + %k * 64] : memref<256xf32> -> tensor<64xf32>
    "test.op"(%a) : (tensor<64xf32>) -> ()
  }
}
