// RUN: dl-opt %s -p 'loop-to-tile,tile-to-kernel' | filecheck %s

// A block that is a single thread holds a tile in its own registers, in the order of memory; nothing is shuffled, and a
// row that is kept in shared memory needs no barrier.

// CHECK-LABEL: kernel.func @k0
// CHECK-SAME:    grid [8] warps 1 lanes 1 shared 2048
// CHECK-NOT:     kernel.id thread
// CHECK:         kernel.load %x[%block, %{{.*}}] regs {{\[\[}}0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32]] : memref<8x512xf32>
// CHECK-NOT:     kernel.barrier
// CHECK:         kernel.store %{{.*}}, %x_row{{.*}}
// CHECK:         kernel.reduce_registers add %{{.*}} over [0, 1, 2, 3, 4, 5] : vector<64xf32> -> vector<1xf32>
// CHECK-NOT:     kernel.shuffle_xor
// CHECK:         kernel.store %{{.*}}, %y[%block, %{{.*}}] regs {{.*}} : memref<8x512xf32>, vector<64xf32>
func.func @main(%x: tensor<8x512xf32>) -> tensor<8x512xf32> {
  %y = loop.nest (%i, %j) in [8, 512] -> tensor<8x512xf32> attributes {schedule = #tile.schedule<block = [1, 64], serial = [1], chunk = [64], warps = 1, lanes = 1, cache_rows = shared>} {
    %s = loop.reduce add (%k) in [512] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<8x512xf32>
      loop.yield %a : f32
    }
    %b = loop.load %x[%i, %j] : tensor<8x512xf32>
    %c = arith.mulf %b, %s : f32
    loop.yield %c : f32
  }
  func.return %y : tensor<8x512xf32>
}
