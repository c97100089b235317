"""Two processes that do nothing but count, for one second. Prints the CPU seconds they got."""

import os
import resource
import time

if os.fork() == 0:
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        pass
    os._exit(0)
end = time.monotonic() + 1.0
while time.monotonic() < end:
    pass
os.wait()
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(sum(each.ru_utime + each.ru_stime for each in used))
