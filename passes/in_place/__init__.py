"""How a kernel changes when it writes over what it reads: `update-in-place`."""
