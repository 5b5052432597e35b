// RUN: dl-opt %s --load %S/index_maps.py -p compose-index-maps,dce | filecheck %s

// CHECK-LABEL: func.func @twice
// CHECK-NEXT:    func.return %x
func.func @twice(%x: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %0 = tensor.index_map %x[d1, d0] : tensor<3x4xf32> -> tensor<4x3xf32>
  %1 = tensor.index_map %0[d1, d0] : tensor<4x3xf32> -> tensor<3x4xf32>
  func.return %1 : tensor<3x4xf32>
}

// ... a chain whose composition depends on the order, and one with a domain
