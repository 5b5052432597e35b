// RUN: dl-opt %s --split-input-file -p tensor-plan-fusion,convert-tensor-to-loop | filecheck %s
// RUN: %check_each %s --split-input-file -p tensor-to-loop

// The nest of a scan computes its elementwise source, and the elementwise operations that follow it.
// CHECK-LABEL: func.func @main
// CHECK-NEXT:    %y = loop.nest (%i, %j) in [16, 64] -> tensor<16x64xbf16> {
// CHECK-NEXT:      %[[L:.*]] = loop.load %x
// CHECK-NEXT:      %[[A:.*]] = payload.cast %[[L]] : bf16 -> f32
// CHECK-NEXT:      %[[S:.*]] = loop.scan add %[[A]] along %j : f32
// CHECK-NEXT:      %[[Y:.*]] = payload.cast %[[S]] : f32 -> bf16
// CHECK-NEXT:      loop.yield %[[Y]] : bf16
func.func @main(%x: tensor<16x64xbf16>) -> tensor<16x64xbf16> {
  %a = payload.cast %x : tensor<16x64xbf16> -> tensor<16x64xf32>
  %s = tensor.prefix_scan add %a along 1 : tensor<16x64xf32>
  %y = payload.cast %s : tensor<16x64xf32> -> tensor<16x64xbf16>
  func.return %y : tensor<16x64xbf16>
}

// -----

// A reduction before the scan, and users that read the result along other indices, are nests of their own.
// CHECK-LABEL: func.func @main
// CHECK:         %r = loop.nest (%{{.*}}) in [16] -> tensor<16xf32> {
// CHECK:         %s = loop.nest (%{{.*}}) in [16] -> tensor<16xf32> {
// CHECK-NEXT:      loop.load %r
// CHECK-NEXT:      loop.scan add
// CHECK-NEXT:      loop.yield
// CHECK:         %y = loop.nest (%{{.*}}) in [16, 64] -> tensor<16x64xf32> {
// CHECK-NEXT:      loop.load %s
func.func @main(%x: tensor<16x64xf32>) -> tensor<16x64xf32> {
  %r = tensor.reduce add %x over [1] : tensor<16x64xf32> -> tensor<16xf32>
  %s = tensor.prefix_scan add %r along 0 : tensor<16xf32>
  %b = tensor.index_map %s[d0] : tensor<16xf32> -> tensor<16x64xf32>
  %y = arith.addf %b, %x : tensor<16x64xf32>
  func.return %y : tensor<16x64xf32>
}

// -----

// Of one iteration a scan is its source.
// CHECK-LABEL: func.func @main
// CHECK-NOT:     loop.scan
func.func @main(%x: tensor<16x1xf32>) -> tensor<16x1xf32> {
  %s = tensor.prefix_scan add %x along 1 : tensor<16x1xf32>
  func.return %s : tensor<16x1xf32>
}

// -----

// A scanned index is not split, though the source is read at its digits.
// CHECK-LABEL: func.func @main
// CHECK:         loop.nest (%i) in [60] -> tensor<60xf32> {
// CHECK-NEXT:      loop.load %x[%i mod 6, %i floordiv 6]
// CHECK-NEXT:      loop.scan add %{{.*}} along %i
func.func @main(%x: tensor<6x10xf32>) -> tensor<60xf32> {
  %v = tensor.index_map %x[d0 mod 6, d0 floordiv 6] : tensor<6x10xf32> -> tensor<60xf32>
  %s = tensor.prefix_scan add %v along 0 : tensor<60xf32>
  func.return %s : tensor<60xf32>
}
