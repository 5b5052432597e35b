// RUN: %diagnostics

%x = "test.op"() : () -> (memref<4xf32>)
// CHECK: kernel.print: expected numbers to print, but got memref<4xf32>
kernel.print "x" %x[] : memref<4xf32>

// -----

%x, %i = "test.op"() : () -> (vector<4xf32>, index)
// CHECK: kernel.print: expected indices of type vector<4xindex>, but got index
kernel.print "x" %x[%i] : vector<4xf32>

// -----

%x, %w = "test.op"() : () -> (vector<4xf32>, vector<2xi1>)
// CHECK: kernel.print: expected a mask of type vector<4xi1>, but got vector<2xi1>
kernel.print "x" %x[] where %w : vector<4xf32>

// -----

%x, %w = "test.op"() : () -> (vector<4xf32>, vector<4xi1>)
// CHECK: operand is used with type i1, but has been previously used or defined with type vector<4xi1>
kernel.print "x" %x[] if %w : vector<4xf32>
