"""Types several lines into the shell at once, on a terminal of its own; prints what the shell shows."""

import os
import pty
import sys

pid, terminal = pty.fork()
if pid == 0:
    os.environ.update(TERM="xterm", HOME=sys.argv[2])
    os.execv(sys.argv[1], [sys.argv[1]])


def until(text):
    seen = b""
    while text not in seen:
        seen += os.read(terminal, 65536)
    return seen


until(b"millpond> ")
os.write(terminal, b"SET 'job.name' = 'a';\nSHOW TABLES;\nSHOW VIEWS;\nexit\n")
try:
    while chunk := os.read(terminal, 65536):
        sys.stdout.buffer.write(chunk)
except OSError:
    pass  # The shell has closed its side.
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
