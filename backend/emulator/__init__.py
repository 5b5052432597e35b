"""The emulator: the printed CUDA text itself, compiled by the host compiler, run and watched.

One fiber for each CUDA thread under a seeded order, and every access to memory seen before it happens. It finds what no
interpreter of the IR can: mistakes of the printer, and, with the line of the CUDA text, races, reads of memory that
nobody wrote, accesses out of bounds or misaligned, barriers and shuffles that not every thread reaches.

Whether two accesses race is decided by what orders them, not by what happened to run first; so few seeds are enough.
"""

from .program import EmulatedModule, EmulatedProgram, Report, compile_many, run_cuda_on_cpu, run_standalone_on_cpu

__all__ = ["EmulatedModule", "EmulatedProgram", "Report", "compile_many", "run_cuda_on_cpu", "run_standalone_on_cpu"]
