"""Backends: printers, runtimes, interpreters and simulators of compiled programs."""
