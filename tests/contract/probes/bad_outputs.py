"""Leaves things in the output folder that a careless collector trips over. argv: output folder, a secret's path."""

import os
import socket
import sys

out, secret = sys.argv[1], sys.argv[2]
os.makedirs(f"{out}/folder", exist_ok=True)
os.symlink(secret, f"{out}/link")
os.symlink(os.path.dirname(secret), f"{out}/folder_link")
os.symlink("../../../../../.." + secret, f"{out}/folder/relative_link")
os.mkfifo(f"{out}/pipe")
socket.socket(socket.AF_UNIX).bind(f"{out}/socket")
with open(f"{out}/sparse", "wb") as file:
    file.truncate(64 << 30)
with open(f"{out}/twice", "wb") as file:
    file.write(b"x")
os.link(f"{out}/twice", f"{out}/folder/twice_too")
for name in (b"new\nline", b"bad\xffutf8", b"back\\slash", "right\u202eto left".encode()):
    with open(os.fsencode(out) + b"/" + name, "wb") as file:
        file.write(b"x")
with open(f"{out}/good", "wb") as file:
    file.write(b"good")
with open(f"{out}/folder/good", "wb") as file:
    file.write(b"also good")
print("LEFT", flush=True)
