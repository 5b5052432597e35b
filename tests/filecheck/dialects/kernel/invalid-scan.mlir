// RUN: %diagnostics

%a, %z = "test.op"() : () -> (vector<8xf32>, vector<2xf32>)
// CHECK: kernel.scan_registers: expected distinct, ascending register bits of 8 registers, but got [1, 0]
%s, %c = kernel.scan_registers add %a, %z over [1, 0] : vector<8xf32>, vector<2xf32>

// -----

%a, %z = "test.op"() : () -> (vector<8xf32>, vector<4xf32>)
// CHECK: kernel.scan_registers: expected 2 initial values for the scan of 2 bits of 8 registers, but got vector<4xf32>
%s, %c = kernel.scan_registers add %a, %z over [0, 1] : vector<8xf32>, vector<4xf32>

// -----

%a, %z = "test.op"() : () -> (vector<8xbf16>, vector<4xbf16>)
// CHECK: kernel.scan_registers: expected a type to compute in, but got bf16, a storage type; cast to f32 first
%s, %c = kernel.scan_registers add %a, %z over [0] : vector<8xbf16>, vector<4xbf16>
