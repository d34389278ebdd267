"""The scripts of this folder are run as ranks, and its helpers imported by their bare names."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
