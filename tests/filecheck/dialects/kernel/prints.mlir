// RUN: %roundtrip

%x, %i, %w, %first, %n = "test.op"() : () -> (vector<4xf32>, vector<4xindex>, vector<4xi1>, i1, index)
// CHECK:      kernel.print "k0 %x" %x[%i, %i] where %w if %first : vector<4xf32>
// CHECK-NEXT: kernel.print "%x" %x[%i] if %first : vector<4xf32>
// CHECK-NEXT: kernel.print "n" %n[] : index
kernel.print "k0 %x" %x[%i, %i] where %w if %first : vector<4xf32>
kernel.print "%x" %x[%i] if %first : vector<4xf32>
kernel.print "n" %n[] : index
