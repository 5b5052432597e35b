// RUN: %roundtrip

%x, %n = "test.op"() : () -> (tensor<4x8xbf16>, index)
%i, %j, %w = "test.op"() : () -> (tensor<4x8xindex>, tensor<4x8xindex>, tensor<4x8xi1>)
// CHECK:      tile.print "k0 %x" %x[%i, %j] where %w : tensor<4x8xbf16>
// CHECK-NEXT: tile.print "%x" %x[] : tensor<4x8xbf16>
// CHECK-NEXT: tile.print "" %n[%n] : index
tile.print "k0 %x" %x[%i, %j] where %w : tensor<4x8xbf16>
tile.print "%x" %x[] : tensor<4x8xbf16>
tile.print "" %n[%n] : index
