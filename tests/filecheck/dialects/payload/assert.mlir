// RUN: %roundtrip

// An assertion of integers, at every level: the integers go through.
func.func @main(%i: tensor<5xi64>, %legal: tensor<5xi1>, %n: index, %is: i1, %v: vector<4xi32>, %vs: vector<4xi1>) {
  // CHECK: %j = payload.assert %i where %legal, "aten.embedding: an index is outside [0, 100)" at "model.py:7" : tensor<5xi64>
  %j = payload.assert %i where %legal, "aten.embedding: an index is outside [0, 100)" at "model.py:7" : tensor<5xi64>
  // CHECK-NEXT: %m = payload.assert %n where %is, "a size" : index
  %m = payload.assert %n where %is, "a size" : index
  // CHECK-NEXT: %w = payload.assert %v where %vs, "registers" {note} : vector<4xi32>
  %w = payload.assert %v where %vs, "registers" {note} : vector<4xi32>
  func.return
}
