// RUN: dl-opt %s --split-input-file | dl-opt --split-input-file | filecheck %s

// A record is its name alone.
// CHECK: builtin.module attributes {deplodock.target = #deplodock.target<sm_90a>}
builtin.module attributes {deplodock.target = #deplodock.target<sm_90a>} {}

// -----

// An H100 PCIe has 114 multiprocessors, and the rates of an H200 in proportion. Numbers of the record are not repeated.
// CHECK: builtin.module attributes {deplodock.target = #deplodock.target<"sm_90a:114">}
builtin.module attributes {deplodock.target = #deplodock.target<"sm_90a:114", l2 = 52428800 B>} {}

// -----

// Numbers that differ have units, and the attribute has a name in front of the module.
// CHECK: #target = #deplodock.target<sm_90a, card = "H100", rates.memory = 3.0e12 B_per_s, rates.latency = 6.5e-7 s>
// CHECK-NEXT: builtin.module attributes {deplodock.target = #target}
builtin.module attributes {deplodock.target = #deplodock.target<
    sm_90a, rates.latency = 6.5e-07 s, card = "H100", rates.memory = 3000000000000.0 B_per_s>} {}

// -----

// A CPU has cores and their costs, too.
// CHECK: #target = #deplodock.target<"cpu{isa=avx2 cores=4}", core.l1 = 49152 B, costs.pack = 15.5 vector_ops>
builtin.module attributes {deplodock.target = #deplodock.target<
    "cpu{isa=avx2 cores=4}", core.l1 = 49152 B, costs.pack = 15.5 vector_ops>} {}
