"""A file, its patch, and ways in which a patch goes wrong."""

from __future__ import annotations

FILES = {"pkg/a.py": "import os\n\n\ndef f(x):\n    return x\n\n\ndef g(x):\n    return os.fspath(x)\n"}
PATCH = """\
diff --git a/pkg/a.py b/pkg/a.py
--- a/pkg/a.py
+++ b/pkg/a.py
@@ -2,6 +2,7 @@ import os
 
 
 def f(x):
+    x = abs(x)
     return x
 
 
"""
TRUNCATED = PATCH[: PATCH.index("     return x")]
WRONG_LINES = PATCH.replace("@@ -2,6 +2,7 @@", "@@ -4,6 +4,7 @@")
WRONG_CONTEXT = PATCH.replace("     return x", "     return y")
WRONG_FILE = PATCH.replace("pkg/a.py", "pkg/b.py")
NEW_FILE = "--- /dev/null\n+++ b/pkg/new.py\n@@ -0,0 +1 @@\n+x = 1\n"
PROSE = "I would check the sign of `x` first.\n\n- then return it\n+ with abs()\n"
GARBAGE = "\x00@@@@ --- +++ \ufffd\ufffd diff" * 20
