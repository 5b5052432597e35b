"""Bugs in the CUDA printer: each changes one expression of the printer, or the printed text."""

from __future__ import annotations

from deplodock.dialects.payload import Predicate

from .editing import Code, in_printer, in_table, in_text

access, expressions, reductions, statements, writer = (
    Code(f"backend.cpp.{name}") for name in ("memory", "expressions", "reductions", "statements", "writer")
)
Statements = statements.Statements

PRINTER_CODE = [
    in_printer(
        "registers are written that a product in flight reads",
        "attention of warpgroups",
        Code("backend.cpp.ordering").Ordering._last_reads_in_flight,
        "in_flight.update(_)",
        "None",
    ),
    in_printer("conditions <=", "softmax", access.condition, "f'{A} < {B}'", "f'{A} <= {B}'"),
    in_printer("conditions one short", "transpose", access.condition, "f'{A} < {B}'", "f'{A} < {B} - 1'"),
    in_printer("conditions >", "gather and pad", access.condition, "f'{A} >= {B}'", "f'{A} > {B}'"),
    in_printer("conditions without lower bounds", "gather and pad", access.open_checks, "_ < _", "False"),
    in_printer("conditions without upper bounds", "relu matmul", access.open_checks, "_ >= _", "False"),
    in_printer(
        "conditions of the first register",
        "transpose",
        access.condition,
        "add(A, terms(B, _, _))",
        "A",
    ),
    in_printer("only the last condition", "relu matmul", access.condition, "_ is None", "True"),
    in_printer("conditions joined by or", "transpose", access.condition, "f'{A} && {B}'", "f'{A} || {B}'"),
    in_printer("column-major addresses", "transpose", access.pitches, "result[::-1]", "result"),
    in_printer("pitches of one element more", "layer_norm", access.pitches, "A * B", "A * (B + 1)"),
    in_printer(
        "addresses without the register",
        "column sums",
        access.offset,
        "add(A, _)",
        "A",
    ),
    in_printer(
        "exclusive or as sum",
        "transpose",
        access.xor_address,
        "infix(A, '^', B, _)",
        "add(A, B)",
    ),
    in_printer(
        "no exclusive or",
        "relu matmul",
        access.offset,
        "xor_address(A, _, _, _)",
        "A",
    ),
    in_printer("narrowed wide accesses", "softmax", access.wide_access_helper, "A.data", "A.data // 2", number=2),
    in_printer("arrays that are not aligned", "softmax", writer.Writer.pointer, "_ > _", "False"),
    in_printer(
        "arrays aligned by half",
        "bf16 rms_norm",
        writer.Writer.pointer,
        r"f'\\1__align__({A}) '",
        r"f'\\1__align__({A // 2}) '",
    ),
    in_printer(
        "arrays aligned to an element",
        "relu matmul",
        writer.Writer.pointer,
        r"f'\\1__align__({_}) '",
        r"f'\\1__align__({aligned}) '",
    ),
    in_printer("arrays of words that are not aligned", "bf16 matmul", writer.Writer.pointer, "_ > _", "False"),
    in_printer(
        "no fill",
        "layer_norm",
        access._load_if,
        "f'else {A}({B}, {C});'",
        "f'else if (false) {A}({B}, {C});'",
    ),
    in_printer(
        "registers all set in the first place",
        "transpose",
        writer.Writer.define,
        "A[B].text",
        "A[0].text",
    ),
    in_printer("predicates dropped", "rms_norm", access.guard, "_ is not None", "False"),
    in_printer(
        "predicates in the place of conditions",
        "column sums",
        access.guard,
        "A if _ else infix(A, '&&', _, _)",
        "A",
    ),
    in_printer(
        "loops to <=",
        "relu matmul",
        statements.print_for,
        "f'for ({A} {B} = {C}; {B} < {D}; {E})'",
        "f'for ({A} {B} = {C}; {B} <= {D}; {E})'",
    ),
    in_printer(
        "loops from the second iteration",
        "chunked matmul",
        statements.print_for,
        "f'for ({A} {B} = {C}; {B} < {D}; {E})'",
        "f'for ({A} {B} = {C} + 1; {B} < {D}; {E})'",
    ),
    in_printer(
        "steps doubled",
        "relu matmul",
        statements.print_for,
        "f'++{A}'",
        "f'{A} += 2'",
    ),
    in_printer(
        "carried values not started",
        "column sums",
        statements._carried_variable,
        "A.array(B, C, ' = {}')",
        "A.array(B, C)",
    ),
    in_printer(
        "carried values not rotated",
        "chunked softmax",
        statements._assign_in_parallel,
        "if A:\n    _.copy(_, B)",
        "if A:\n    pass",
    ),
    in_printer(
        "carried values overwritten early", "chunked softmax", statements._compute_in_carried_variable, "_ < _", "True"
    ),
    in_printer(
        "folds from the second register",
        "softmax",
        reductions.print_register_reduction,
        "f'for (int i = 1; i < {A}; ++i) {B}'",
        "f'for (int i = 2; i < {A}; ++i) {B}'",
    ),
    in_printer(
        "folds of one register less",
        "softmax",
        reductions.print_register_reduction,
        "f'for (int i = 1; i < {A}; ++i) {B}'",
        "f'for (int i = 1; i < {A - 1}; ++i) {B}'",
    ),
    in_printer(
        "folds that start at every register",
        "attention",
        reductions.print_register_reduction,
        "f'{A} = (i & {B}) == 0 ? {C} : {D};'",
        "f'{A} = (i & {B}) >= 0 ? {C} : {D};'",
    ),
    in_printer(
        "folds into the wrong registers",
        "column sums",
        reductions._steps_without,
        "A in B",
        "A in B[:1]",
    ),
    in_printer(
        "butterflies without their last step",
        "softmax",
        reductions.print_butterfly,
        "f'm <= {A}; m *= 2'",
        "f'm < {A}; m *= 2'",
    ),
    in_printer(
        "butterflies of the first register",
        "attention",
        reductions.print_butterfly,
        "target[r]",
        "target[0]",
    ),
    in_printer(
        "butterflies with other lanes",
        "layer_norm",
        reductions.print_butterfly,
        "f'm <= {A}; m *= 2'",
        "f'm <= {A}; m *= 4'",
    ),
    in_printer(
        "shuffles to half a warp",
        "softmax",
        reductions.shuffle_call,
        "f'__shfl_{A}sync(0xffffffffu, {{}}, {B})'",
        "f'__shfl_{A}sync(0x0000ffffu, {{}}, {B})'",
    ),
    in_printer(
        "transposed registers of products",
        "attention",
        Statements.outer_fma,
        "A.read(B, _)",
        "A.read(B, 0)",
    ),
    in_printer(
        "products without accumulators",
        "relu matmul",
        Statements.outer_fma,
        "f'{A}({B}, {C}, {D})'",
        "f'{A}({B}, {C}, 0.0f)'",
    ),
    in_printer(
        "registers picked one off",
        "attention",
        writer._read_shuffled,
        "A[0]",
        "A[0] ^ 1",
    ),
    in_printer(
        "indices without the register",
        "argmax",
        writer._read_indices,
        "add(A, terms(_, B.steps.get_values()))",
        "A",
    ),
    in_printer("register bits with another mask", "attention", expressions._run, "1", "2", number=2),
    in_printer(
        "register bits one lower",
        "attention",
        expressions._run,
        "f'{A} >> {B}'",
        "f'{A} >> {B - 1}'",
    ),
    in_printer(
        "truncated conversions",
        "bf16 rms_norm",
        expressions.Scalars.cast,
        "_.helper(f'to_{_}', [A if _ else _])",
        "Expr(f'bf16{{(unsigned short)(__float_as_uint({A.text}) >> 16)}}')",
    ),
    in_printer(
        "selections reversed",
        "layer_norm",
        expressions._select,
        "f'{A} ? {B} : {C}'",
        "f'{A} ? {C} : {B}'",
    ),
    in_table(
        "less for less or equal",
        "attention",
        expressions.COMPARISONS,
        Predicate.LE,
        Predicate.LT,
    ),
    in_table(
        "less or equal for less",
        "layer_norm",
        expressions.COMPARISONS,
        Predicate.LT,
        Predicate.LE,
    ),
    in_table("unequal for equal", "argmax", expressions.COMPARISONS, Predicate.EQ, Predicate.NE),
    in_table(
        "sum for difference",
        "softmax",
        expressions.OPERATORS,
        "arith.subf",
        "arith.addf",
    ),
    in_table(
        "product for quotient",
        "softmax",
        expressions.OPERATORS,
        "arith.divf",
        "arith.mulf",
    ),
    in_table("sqrt for rsqrt", "rms_norm", expressions.FLOAT_FUNCTIONS, "math.rsqrt", "sqrt"),
    in_printer(
        "exp for exp2",
        "chunked softmax",
        expressions._function,
        "scalars.helper(A, operands)",
        "call('expf', operands)",
    ),
    in_table(
        "remainder for quotient",
        "two kernels",
        expressions.OPERATORS,
        "arith.divui",
        "arith.remui",
    ),
    in_table("thread for lane", "rms_norm", writer.Writer.ids, "lane", "threadIdx.x"),
    in_table("warps of 16", "rms_norm", writer.Writer.ids, "warp", "threadIdx.x / 16"),
    in_table("sum for product", "integers", expressions.OPERATORS, "arith.muli", "arith.addi"),
]

BODY_OF_LD4 = r"\*\(float4\*\)r = \*\(const float4\*\)p;"

PRINTED_TEXT = [
    in_text("ld4 reads half", "softmax", BODY_OF_LD4, "*(float2*)r = *(const float2*)p;"),
    in_text("ld4 reads the next four", "rms_norm", r"\*\(const float4\*\)p;", "*(const float4*)(p + 4);"),
    in_text("ld4 for ld2", "relu matmul", r"ld2\(a,", "ld4(a,"),
    in_text(
        "st4 writes half", "softmax", r"\*\(float4\*\)p = \*\(const float4\*\)r;", "*(float2*)p = *(const float2*)r;"
    ),
    in_text("fill4 fills three", "layer_norm", r"i < 4; \+\+i\) r\[i\] = v;", "i < 3; ++i) r[i] = v;"),
    in_text("maximum without NaN", "argmax", r"max_nan\(top, x_in", "fmaxf(top, x_in"),
    in_text("the assembly of the maximum", "softmax", r"max\.NaN\.f32", "max.f32"),
    in_text("the assembly of the rounding", "bf16 rms_norm", r"cvt\.rn\.bf16\.f32", "cvt.rz.bf16.f32"),
    in_text("bf16 widened by 15 bits", "bf16 rms_norm", r"x\.bits << 16", "x.bits << 15"),
    in_text("infinity as the largest number", "argmax", r"0x7f800000u", "0x7f7fffffu"),
    in_text("floor_div truncates", "integers", r" - \(int_rem\(a, b\) != 0 && \(a < 0\) != \(b < 0\)\)", ""),
    *(
        in_text(f"__syncthreads {n} dropped", subject, r"__syncthreads\(\);", "", n)
        for subject, count in {
            "rms_norm": 1,
            "chunked softmax": 2,
            "chunked matmul": 1,
            "matmul of relus": 2,
            "matmul softmax": 3,
        }.items()
        for n in range(count)
    ),
    in_text(
        "__syncthreads under a condition", "rms_norm", r"__syncthreads\(\);", "if (threadIdx.x < 64) __syncthreads();"
    ),
    in_text("a row with another pitch", "rms_norm", r"block \* 2048", "block * 2049"),
    in_text("a constant's last digit", "layer_norm", r"/ 100\.0f", "/ 100.1f"),
    in_text("a constant's exponent", "layer_norm", r"1e-05f", "1e-04f"),
    in_text("another register of a product", "relu matmul", r"acc\[i \* 2 \+ j\] = fmaf", "acc[i * 2 + i] = fmaf"),
    in_text("a short shuffle", "layer_norm", r"m <= 16", "m <= 8"),
    in_text("a view that starts a column late", "gather and pad", r"at1 - 1", "at1 - 2"),
    in_text("a smaller shared buffer", "rms_norm", r"&tile_shared\[0\]", "&tile_shared[4]"),
    in_text("fewer threads", "rms_norm", r"threadIdx\.x / 32", "threadIdx.x / 64"),
    in_text("an array that is one short", "transpose", r"float x_in\[4\];", "float x_in[3];"),
    in_text("a variable that is not set", "layer_norm", r"float total = x_in\[0\];", "float total;"),
    in_text("a store that is dropped", "transpose", r"tile_shared\[[^;]*\] = [^;]*;", ";"),
    in_text("a store of another register", "bf16 rms_norm", r"&r1\[i\]\);", "&r1[0]);"),
    in_text("a minimum that starts at 0", "argmax", r"9223372036854775807ll", "0ll"),
    in_text("a matrix that is not transposed", "bf16 matmul", r"ldmatrix_x4_trans\(b", "ldmatrix_x4(b"),
    in_text(
        "rows of a matrix product swapped",
        "bf16 matmul",
        r"&acc\[j \* 4\], &acc\[j \* 4 \+ 2\]",
        "&acc[j * 4 + 2], &acc[j * 4]",
    ),
    in_text("the first columns twice", "bf16 matmul", r"&b\[j \* 4\]", "&b[0]"),
    in_text("__syncthreads before matrices dropped", "bf16 matmul", r"__syncthreads\(\);", ""),
    in_text("steps of 8 through the depth of 16", "bf16 matmul", r"kk \+= 16", "kk += 8"),
    in_text("the shape of a matrix product", "bf16 matmul", r"m16n8k16\.row\.col", "m16n8k16.col.row"),
    in_text("a literal's sign", "integers", r"7ll", "-7ll"),
]

PRINTER_MUTANTS = [*PRINTER_CODE, *PRINTED_TEXT]
