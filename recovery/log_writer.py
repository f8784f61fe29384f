"""`meshmsg.recovery.log.writer`, under the name that older programs know."""

import sys
from importlib import import_module

sys.modules[__name__] = import_module("meshmsg.recovery.log.writer")
