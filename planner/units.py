"""Powers of ten and two. The only place where they are written; see ARCHITECTURE.md, "Units"."""

NANO = 1e-9
MICRO = 1e-6
MILLI = 1e-3
KILO = 1e3
MEGA = 1e6
GIGA = 1e9
TERA = 1e12
PETA = 1e15

KIB = 2**10
MIB = 2**20
GIB = 2**30
TIB = 2**40

BITS_PER_BYTE = 8
SECONDS_PER_HOUR = 3600.0
MINUTES_PER_HOUR = 60.0
HOURS_PER_MONTH = 730.0  # 8,760 hours a year over twelve months
PERCENT = 100.0
