"""Exercises of chapter 10: schedules, judged by predicted and measured times."""

from __future__ import annotations

from .....dialects.tile.schedule import ScheduleAttr
from .....errors import ScheduleError
from .....target.host import resolve_target
from ...answers import Answer
from ...course import Chapter, Exercise
from ...numbers import Quantity, require_numbers
from ...trials import Trials, microseconds
from ...verdicts import Wrong
from .programs import matmul, sums_of_squares

MEASURED_PAR = 1.5
"""Largest ratio of measured times. Generous, because other work on the machine changes them."""


def judge_count(answer: Answer) -> str:
    """Compares six numbers about a schedule with the planner's model."""
    trials, n = Trials(matmul(4096, 4096, 4096)), 4096
    rows, columns, chunk, warps, sms = 128, 256, 64, 8, trials.target.sms
    base = ScheduleAttr.get((rows, columns), (chunk,), warps=warps, stages=2, atom="wgmma", copy="tma")
    two, three = (trials.model.predict(base.changed(stages=s)) for s in (2, 3))
    stage = three.shared - two.shared
    whole = two.shared - 2 * stage
    most = max(s for s in range(2, 9) if _possible(trials, base.changed(stages=s)))
    sums = rows * columns // (warps * trials.target.lanes)
    last = two.blocks - (two.waves - 1) * sms
    names = {
        "accumulators": Quantity(
            sums,
            "the tile has 128x256 sums, shared by 8 warps of 32 threads",
            {rows * columns / warps: "that is for each warp; a warp has 32 threads"},
        ),
        "stage_bytes": Quantity(
            stage,
            "a stage has a tile of each operand, 128x64 and 64x256, of 2 bytes an element",
            {
                stage / 2: "these are elements, and an element of bf16 has 2 bytes",
                stage * 2: "an element of bf16 has 2 bytes, not 4",
                rows * chunk * 2: "that is one operand of the two",
                columns * chunk * 2: "that is one operand of the two",
                3 * stage: "that is for 3 stages; one is asked for",
            },
        ),
        "most_stages": Quantity(
            most,
            f"divide what remains of {trials.target.shared_per_block} bytes after {whole} bytes for results by the"
            " bytes of a stage, rounded down",
            {
                most + 1: "the stages and the buffers for results take more than a block has",
                trials.target.shared_per_block / stage: "a part of a stage is no stage: round down",
            },
        ),
        "blocks": Quantity(
            two.blocks,
            "one block for each 128x256 tile of the 4096x4096 result",
            {n // rows: "that is one column of tiles", n // columns: "that is one row of tiles"},
        ),
        "waves": Quantity(
            two.waves,
            "all multiprocessors execute one block each in a wave, and the last wave counts as a whole",
            {
                two.blocks / sms: "the last wave takes as long as a full one: round up",
                two.waves - 1: "round up, not down",
            },
        ),
        "last_wave_blocks": Quantity(
            last,
            "subtract the blocks of the full waves",
            {sms - last: "that is the number of idle multiprocessors"},
        ),
    }
    require_numbers(answer, names)
    return (
        f"right: {two.blocks} blocks are {two.waves} waves, whose last one leaves {sms - last} of {sms} multiprocessors"
        f" idle; {most} stages take {whole + most * stage} of {trials.target.shared_per_block} bytes"
    )


def _possible(trials: Trials, schedule: ScheduleAttr) -> bool:
    try:
        trials.model.check(schedule)
    except ScheduleError:
        return False
    return True


def judge_rows(answer: Answer) -> str:
    """Judges schedules of 64 long sums."""
    return Trials(sums_of_squares(64, 131072)).judge(answer, most=6, par=1.2)


def judge_matmul(answer: Answer) -> str:
    """Judges schedules of a large matmul."""
    return Trials(matmul(4096, 4096, 4096)).judge(answer, most=10, par=1.1)


def judge_thin(answer: Answer) -> str:
    """Judges schedules of a matmul with a small result and a long reduction."""
    return Trials(matmul(512, 512, 16384)).judge(answer, most=8, par=1.1)


def judge_cpu(answer: Answer) -> str:
    """Judges one schedule by its predicted time, its results and its measured time on one core."""
    from .measured import measure

    trials = Trials(matmul(512, 512, 512, "f32", resolve_target("cpu{cores=1}")))
    (trial,) = trials.read(answer, most=1)
    if trial.prediction is None or trial.schedule is None:
        raise Wrong(trials.describe(trial))
    predicted = f"predicted {microseconds(trial.prediction.seconds)}, {trials.ratio(trial):.2f}x the planner's pick"
    times = measure(trials, trial.schedule)
    rate = 2 * 512**3 / times.seconds / 1e9
    measured = f"measured {microseconds(times.seconds)} ({rate:.0f} Gflop/s), {times.seconds / times.pick:.2f}x"
    if times.seconds > MEASURED_PAR * times.pick:
        (rows, columns), (chunk,) = trial.schedule.data.block, trial.schedule.data.chunk
        loads = f"a chunk reads {(rows + columns) * chunk} numbers for {rows * columns * chunk} multiply-adds"
        sums = f"and {rows * columns} sums are carried from chunk to chunk"
        raise Wrong(
            f"right results, but slow: {measured}, and par is {MEASURED_PAR}x the planner's pick; {predicted};"
            f" {loads} {sums if chunk < 512 else ''}".rstrip()
        )
    return f"right results; {measured}; {predicted}, {str(trials.pick.schedule).removeprefix('#tile.schedule')}"


CHAPTER = Chapter(
    __package__ or "",
    "Choose a schedule",
    [
        Exercise(
            "count",
            "Count before you choose",
            ".txt",
            judge_count,
            (
                "A chunk is the part of the reduction that one iteration of a block computes. Its operands are tiles of"
                " block x chunk elements.",
                "`shared` in the output of `--explain` is the sum of all stages and of the buffers for results. Two"
                " schedules that differ in `stages` only show what one stage takes.",
                "waves = blocks / multiprocessors, rounded up.",
            ),
        ),
        Exercise(
            "rows",
            "Sums of 64 long rows",
            ".txt",
            judge_rows,
            (
                "Each row is one block if block=1. How many multiprocessors then have work?",
                "A longer chunk means fewer iterations, each of which waits for its loads once. Give it enough warps.",
                "cluster=4 lets four neighbouring blocks share one row. split_k=4 does so too, but needs a second"
                " kernel.",
            ),
        ),
        Exercise(
            "matmul",
            "A matmul of 4096x4096x4096",
            ".txt",
            judge_matmul,
            (
                "Begin with the instruction: fma, mma or wgmma. The ratios between them are the largest.",
                "Then the tile. An operand tile is read from L2 once for each tile in the other direction: larger tiles"
                " read less.",
                "wgmma reads its operands from shared memory, to which copy=tma brings them. With one stage the block"
                " waits for each copy.",
            ),
        ),
        Exercise(
            "thin",
            "A matmul with few tiles",
            ".txt",
            judge_thin,
            (
                "How many tiles has the result? How many multiprocessors are there?",
                "Smaller tiles give more blocks, but each byte is read more often. The reduction is long: divide that.",
                "split_k=N makes N times as many blocks. Aim for one wave.",
            ),
        ),
        Exercise(
            "cpu",
            "A matmul on this CPU, measured",
            ".txt",
            judge_cpu,
            (
                "On a CPU a block is a task of one core, warps and lanes are 1, and operands are in caches.",
                "`dl-opt -p 'plan-schedules{target=cpu explain}' --remarks` lists the candidates of the planner.",
                "A tile of R x C sums loads R + C numbers for each R * C multiply-adds. Larger tiles load less, as"
                " long as they stay in the caches of the core.",
            ),
            modules=("torch", "deplodock.frontend.tuning.running"),
            seconds=10,
        ),
    ],
)
