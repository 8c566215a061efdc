"""Random horizons: large ones for speed, tiny ones for enumeration."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from program_instances import NAMES, STARTS, curve

from planner.program.horizon.problem import Horizon, Offer, Period, Stream
from planner.program.problem import Candidate, GpuType
from planner.specs import ColocatedUse, Phase
