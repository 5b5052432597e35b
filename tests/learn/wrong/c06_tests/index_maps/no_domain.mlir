// judged: catches 4 of 5 faults. It also passes on a pass that loses the domain of the inner map
// RUN: dl-opt %s --load %S/index_maps.py -p compose-index-maps,dce | filecheck %s

// CHECK-LABEL: func.func @twice
// CHECK-NEXT:    func.return %x
func.func @twice(%x: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %0 = tensor.index_map %x[d1, d0] : tensor<3x4xf32> -> tensor<4x3xf32>
  %1 = tensor.index_map %0[d1, d0] : tensor<4x3xf32> -> tensor<3x4xf32>
  func.return %1 : tensor<3x4xf32>
}

// CHECK-LABEL: func.func @slice
// CHECK-NEXT:    %[[Y:.*]] = tensor.index_map %x[d1, d0 + 1]
// CHECK-SAME:      tensor<3x4xf32> -> tensor<2x3xf32>
// CHECK-NEXT:    func.return %[[Y]]
func.func @slice(%x: tensor<3x4xf32>) -> tensor<2x3xf32> {
  %0 = tensor.index_map %x[d1, d0] : tensor<3x4xf32> -> tensor<4x3xf32>
  %1 = tensor.index_map %0[d0 + 1, d1] : tensor<4x3xf32> -> tensor<2x3xf32>
  func.return %1 : tensor<2x3xf32>
}
