// RUN: dl-opt %s -p convert-tile-to-kernel,cse,dce | filecheck %s

// Of threads that hold the same element one combines it, element by element.
// CHECK-LABEL: kernel.func @k1
// CHECK:         %first = payload.cmp eq
// CHECK:         kernel.atomic_rmw add %{{.*}}, %y[%{{.*}}] regs {{\[\[}}1]] where 0 <= %{{.*}} < 20 steps {{\[\[}}1]] if %first : memref<20xf32>, vector<2xf32>
#l = #tile.layout<reg = [[1]], lane = [[2], [4], [8], [16], [0]], warp = []>
tile.kernel @k1(%v: memref<32xf32>, %y: memref<20xf32>) blocks () in [] warps 1 {
  %a = tile.load %v[d0] : memref<32xf32> -> tensor<32xf32, #l>
  tile.atomic_rmw add %a, %y[d0] where 0 <= d0 < 20 : tensor<32xf32, #l>, memref<20xf32>
}
tile.kernel @k0(%y: memref<20xf32>) blocks () in [] warps 1 {
  %z = payload.constant 0.0 : tensor<32xf32, #l>
  tile.store %z, %y[d0] where 0 <= d0 < 20 : tensor<32xf32, #l>, memref<20xf32>
}

// What starts from a value and is the last that needs it takes its buffer; for others it is computed again.
// CHECK-LABEL: func.func @main(%v: memref<32xf32>, %w: memref<32xf32>, %b: memref<20xf32>, %c: memref<20xf32>)
// CHECK-NEXT:    kernel.launch @k0(%b) : memref<20xf32>
// CHECK-NEXT:    kernel.launch @k0(%c) : memref<20xf32>
// CHECK-NEXT:    kernel.launch @k1(%v, %c) : memref<32xf32>, memref<20xf32>
// CHECK-NEXT:    kernel.launch @k1(%w, %c) : memref<32xf32>, memref<20xf32>
// CHECK-NEXT:    kernel.launch @k1(%w, %b) : memref<32xf32>, memref<20xf32>
func.func @main(%v: tensor<32xf32>, %w: tensor<32xf32>) -> (tensor<20xf32>, tensor<20xf32>) {
  %z = tile.launch @k0() : () -> tensor<20xf32>
  %a = tile.launch @k1(%v) from (%z : tensor<20xf32>) : (tensor<32xf32>) -> tensor<20xf32>
  %c = tile.launch @k1(%w) from (%a : tensor<20xf32>) : (tensor<32xf32>) -> tensor<20xf32>
  %b = tile.launch @k1(%w) from (%z : tensor<20xf32>) : (tensor<32xf32>) -> tensor<20xf32>
  func.return %b, %c : tensor<20xf32>, tensor<20xf32>
}

// What is computed again reads what it read before: %x stays, although %y is the last to need it.
// CHECK-LABEL: func.func @again
// CHECK-NEXT:    %[[X:.*]] = kernel.alloc : memref<20xf32>
// CHECK-NEXT:    kernel.launch @k0(%[[X]])
// CHECK-NEXT:    kernel.launch @k2(%[[X]], %s)
// CHECK-NEXT:    kernel.launch @k0(%y)
// CHECK-NEXT:    kernel.launch @k1(%v, %y)
// CHECK-NEXT:    kernel.launch @k2(%[[X]], %z)
// CHECK-NEXT:    kernel.launch @k1(%v, %z)
tile.kernel @k2(%x: memref<20xf32>, %y: memref<20xf32>) blocks () in [] warps 1 {
  %0 = payload.constant 0.0 : f32
  %a = tile.load %x[d0] where 0 <= d0 < 20 else %0 : memref<20xf32> -> tensor<32xf32, #l>
  tile.store %a, %y[d0] where 0 <= d0 < 20 : tensor<32xf32, #l>, memref<20xf32>
}
func.func @again(%v: tensor<32xf32>) -> (tensor<20xf32>, tensor<20xf32>, tensor<20xf32>) {
  %x = tile.launch @k0() : () -> tensor<20xf32>
  %s = tile.launch @k2(%x) : (tensor<20xf32>) -> tensor<20xf32>
  %y = tile.launch @k1(%v) from (%x : tensor<20xf32>) : (tensor<32xf32>) -> tensor<20xf32>
  %z = tile.launch @k1(%v) from (%s : tensor<20xf32>) : (tensor<32xf32>) -> tensor<20xf32>
  func.return %s, %y, %z : tensor<20xf32>, tensor<20xf32>, tensor<20xf32>
}
