// RUN: dl-opt %s -p tile-warp-specialize --split-input-file --remarks --verify-diagnostics | filecheck %s

// Both operands of the product are boxes, used first by it: they share a ring. The bias is loaded by the consumer.

#acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [0, 32]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0], [64, 0]]>
#l = #tile.layout<reg = [[0, 1], [0, 2], [0, 4], [32, 0], [64, 0]], lane = [[0, 8], [0, 16], [0, 32], [1, 0], [2, 0]], warp = [[4, 0], [8, 0], [16, 0]]>
#m = #tile.layout<reg = [[0, 1], [0, 2], [0, 4], [32, 0]], lane = [[0, 8], [0, 16], [0, 32], [1, 0], [2, 0]], warp = [[4, 0], [8, 0], [16, 0]]>
#a = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32], [8, 0], [16, 0], [32, 0], [64, 0]]>
#b = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32], [8, 0], [16, 0], [32, 0]]>

// CHECK-LABEL: tile.kernel @product
// CHECK-NEXT:    %ring = tile.ring : !tile.ring<3 of tensor<128x64xbf16, #swz>, tensor<64x64xbf16, #swz1>>
// CHECK-NEXT:    tile.warp_specialize {
// CHECK:           scf.for %k
// CHECK-NEXT:        %x_shared, %w_shared = tile.consumer_wait %ring
// CHECK-NEXT:        %n = tile.dot %x_shared, %w_shared, %acc atom "wgmma"
// CHECK-NEXT:        tile.consumer_release %ring
// CHECK-NEXT:        scf.yield %n
// CHECK:           tile.store
// CHECK-NEXT:    } producer warps 4 registers [240, 24] {
// CHECK-NOT:       tile.dot
// CHECK:           scf.for %k_1
// CHECK-NEXT:        %xt = tile.tma_load %x[d0 + %i * 128, d1 + %k_1 * 64]
// CHECK-NEXT:        %wt = tile.tma_load %w[d0 + %k_1 * 64, d1]
// CHECK-NEXT:        tile.producer_load %ring, %xt, %wt
// CHECK-NEXT:      }
// CHECK-NEXT:    }
tile.kernel @product(%x: memref<512x512xbf16>, %w: memref<512x64xbf16>, %y: memref<512x64xf32>) blocks (%i) in [4] warps 8
    attributes {schedule = #tile.schedule<block = [128, 64], chunk = [64], warps = 8, atom = wgmma, copy = tma, stages = 3>} {
  %zero = payload.constant 0.0 : tensor<128x64xf32, #acc>
  %z = payload.constant 0.0 : bf16
  %c0 = payload.constant 0 : index
  %c1 = payload.constant 1 : index
  %c8 = payload.constant 8 : index
  %s = scf.for %k = %c0 to %c8 step %c1 iter_args(%acc = %zero) -> (tensor<128x64xf32, #acc>) {
    %xt = tile.load %x[d0 + %i * 128, d1 + %k * 64]
      where 0 <= d1 + %k * 64 < 512 else %z
      : memref<512x512xbf16> -> tensor<128x64xbf16, #l>
    %x_shared = tile.stage %xt : tensor<128x64xbf16, #l> -> tensor<128x64xbf16, #a>
    %wt = tile.load %w[d0 + %k * 64, d1] : memref<512x64xbf16> -> tensor<64x64xbf16, #m>
    %w_shared = tile.stage %wt : tensor<64x64xbf16, #m> -> tensor<64x64xbf16, #b>
    %n = tile.dot %x_shared, %w_shared, %acc atom "wgmma"
      : tensor<128x64xbf16, #a>, tensor<64x64xbf16, #b>, tensor<128x64xf32, #acc> -> tensor<128x64xf32, #acc>
    scf.yield %n : tensor<128x64xf32, #acc>
  }
  tile.store %s, %y[d0 + %i * 128, d1] : tensor<128x64xf32, #acc>, memref<512x64xf32>
}

// -----

// Computed tiles, buffers whose rows are not aligned, other masks than the end of the buffer: the consumer stages them.

#acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [0, 32]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0]]>
#m = #tile.layout<reg = [[0, 1], [0, 2], [0, 4], [16, 0], [32, 0]], lane = [[0, 8], [0, 16], [0, 32], [1, 0], [2, 0]], warp = [[4, 0], [8, 0]]>
#b = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32], [8, 0], [16, 0], [32, 0]]>

// CHECK-DAG:   tile.stage: the tile is computed from what was loaded, so it has to pass through registers
// CHECK-DAG:   tile.stage: the rows of its buffer do not start at multiples of 16 bytes
// CHECK-DAG:   tile.stage: it is masked otherwise than by the end of its buffer
// CHECK-DAG:   tile.stage: the tile is no box of its buffer
// CHECK-LABEL: tile.kernel @declined
// CHECK-NOT:     tile.warp_specialize
tile.kernel @declined(%x: memref<64x64xbf16>, %u: memref<64x63xbf16>, %y: memref<64x64xf32>) blocks () in [] warps 4
    attributes {schedule = #tile.schedule<block = [64, 64], chunk = [64], warps = 4, atom = wgmma, copy = tma>} {
  %zero = payload.constant 0.0 : tensor<64x64xf32, #acc>
  %z = payload.constant 0.0 : bf16
  %a = tile.load %x[d0, d1] : memref<64x64xbf16> -> tensor<64x64xbf16, #m>
  %f = payload.cast %a : tensor<64x64xbf16, #m> -> tensor<64x64xf32, #m>
  %e = math.exp %f : tensor<64x64xf32, #m>
  %t = payload.cast %e : tensor<64x64xf32, #m> -> tensor<64x64xbf16, #m>
  %t_shared = tile.stage %t : tensor<64x64xbf16, #m> -> tensor<64x64xbf16, #b>
  %b = tile.load %u[d0, d1] where 0 <= d1 < 63 else %z
    : memref<64x63xbf16> -> tensor<64x64xbf16, #m>
  %b_shared = tile.stage %b : tensor<64x64xbf16, #m> -> tensor<64x64xbf16, #b>
  %c = tile.load %x[d0, d1] where 0 <= d1 < 60 else %z
    : memref<64x64xbf16> -> tensor<64x64xbf16, #m>
  %c_shared = tile.stage %c : tensor<64x64xbf16, #m> -> tensor<64x64xbf16, #b>
  %d = tile.load %x[d0 floordiv 2, d1] : memref<64x64xbf16> -> tensor<64x64xbf16, #m>
  %d_shared = tile.stage %d : tensor<64x64xbf16, #m> -> tensor<64x64xbf16, #b>
  %n = tile.dot %t_shared, %b_shared, %zero atom "wgmma"
    : tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>, tensor<64x64xf32, #acc> -> tensor<64x64xf32, #acc>
  %o = tile.dot %c_shared, %d_shared, %n atom "wgmma"
    : tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>, tensor<64x64xf32, #acc> -> tensor<64x64xf32, #acc>
  tile.store %o, %y[d0, d1] : tensor<64x64xf32, #acc>, memref<64x64xf32>
}

// -----

// Two blocks on a multiprocessor share its registers: consumers get what is left of a block's half.

#acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [0, 32]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0], [64, 0]]>
#l = #tile.layout<reg = [[0, 1], [0, 2], [0, 4], [32, 0], [64, 0]], lane = [[0, 8], [0, 16], [0, 32], [1, 0], [2, 0]], warp = [[4, 0], [8, 0], [16, 0]]>
#m = #tile.layout<reg = [[0, 1], [0, 2], [0, 4], [32, 0]], lane = [[0, 8], [0, 16], [0, 32], [1, 0], [2, 0]], warp = [[4, 0], [8, 0], [16, 0]]>
#a = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32], [8, 0], [16, 0], [32, 0], [64, 0]]>
#b = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32], [8, 0], [16, 0], [32, 0]]>

// CHECK-LABEL: tile.kernel @crowded
// CHECK:           producer warps 4 registers [104, 24] {
tile.kernel @crowded(%x: memref<512x512xbf16>, %w: memref<512x64xbf16>, %y: memref<512x64xf32>) blocks (%i) in [4] warps 8
    attributes {schedule = #tile.schedule<block = [128, 64], chunk = [64], warps = 8, atom = wgmma, copy = tma, stages = 3, blocks_per_sm = 2>} {
  %zero = payload.constant 0.0 : tensor<128x64xf32, #acc>
  %z = payload.constant 0.0 : bf16
  %c0 = payload.constant 0 : index
  %c1 = payload.constant 1 : index
  %c8 = payload.constant 8 : index
  %s = scf.for %k = %c0 to %c8 step %c1 iter_args(%acc = %zero) -> (tensor<128x64xf32, #acc>) {
    %xt = tile.load %x[d0 + %i * 128, d1 + %k * 64]
      where 0 <= d1 + %k * 64 < 512 else %z
      : memref<512x512xbf16> -> tensor<128x64xbf16, #l>
    %x_shared = tile.stage %xt : tensor<128x64xbf16, #l> -> tensor<128x64xbf16, #a>
    %wt = tile.load %w[d0 + %k * 64, d1] : memref<512x64xbf16> -> tensor<64x64xbf16, #m>
    %w_shared = tile.stage %wt : tensor<64x64xbf16, #m> -> tensor<64x64xbf16, #b>
    %n = tile.dot %x_shared, %w_shared, %acc atom "wgmma"
      : tensor<128x64xbf16, #a>, tensor<64x64xbf16, #b>, tensor<128x64xf32, #acc> -> tensor<128x64xf32, #acc>
    scf.yield %n : tensor<128x64xf32, #acc>
  }
  tile.store %s, %y[d0 + %i * 128, d1] : tensor<128x64xf32, #acc>, memref<512x64xf32>
}
