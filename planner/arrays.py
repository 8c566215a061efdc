"""The array types that formulas share."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Numbers = float | FloatArray
"""A number or an array of them; formulas broadcast."""
