// RUN: %diagnostics

%x, %i = "test.op"() : () -> (tensor<4xf32>, tensor<4xindex>)
// CHECK: tile.print: expected numbers to print, but got !tile.row_buffer<2 of tensor<8xf32>>
%r = "test.op"() : () -> (!tile.row_buffer<2 of tensor<8xf32>>)
tile.print "r" %r[] : !tile.row_buffer<2 of tensor<8xf32>>

// -----

%x, %i = "test.op"() : () -> (tensor<4xf32>, tensor<8xindex>)
// CHECK: tile.print: expected indices of type tensor<4xindex>, but got tensor<8xindex>
tile.print "x" %x[%i] : tensor<4xf32>

// -----

%x, %w = "test.op"() : () -> (tensor<4xf32>, i1)
// CHECK: tile.print: expected a mask of type tensor<4xi1>, but got i1
tile.print "x" %x[] where %w : tensor<4xf32>

// -----

%x = "test.op"() : () -> (f32)
// CHECK: tile.print: expected a label of at most 80 printable characters, but got "a\0Ab"
tile.print "a\nb" %x[] : f32
