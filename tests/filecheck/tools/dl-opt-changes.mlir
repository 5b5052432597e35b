// RUN: dl-opt %s -p cleanup --print-only-changed | filecheck %s
// RUN: dl-opt %s -p 'cleanup,verify-level{level=tensor}' --print-pipeline | filecheck %s --check-prefix PIPELINE

// Only the pass that did something shows, between markers that awk can cut out, and the count comes last.

// CHECK:      >>> t:canonicalize
// CHECK:      {{^}}-    %dead = arith.addf %x, %x : f32
// CHECK:      <<< t:canonicalize
// CHECK-NEXT: 3 passes, 1 changed
// CHECK-NOT:  builtin.module

// PIPELINE: {{^}}canonicalize,cse,dce,verify-level{level=tensor}{{$}}

func.func @f(%x: f32) -> f32 {
  %dead = arith.addf %x, %x : f32
  %y = arith.mulf %x, %x : f32
  func.return %y : f32
}
