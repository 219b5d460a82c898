"""Puts a defect into each process of a server. Python runs this when it starts, if this folder is on its path."""

import os

from lastword.testing.simulation.mutations import MUTATIONS

MUTATIONS[os.environ["LASTWORD_DEFECT"]].apply()
